"""Items of several images: embedded with what the encoder knows of each, then fused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.data import ImageSet
    from midspan.encoders.embedding import OnFailure
    from midspan.spaces import Embeddings

CONFIDENCE = "confidence"


def embed_views(encoder: str, images: ImageSet, *, on_failure: OnFailure) -> Embeddings:
    """With confidence and variance of each image, where the encoder gives them."""
    from midspan.encoders import Encoder, load_encoder
    from midspan.encoders.uncertainty import embed_judged, find_uncertainty

    loaded = load_encoder(encoder)
    if not isinstance(loaded, Encoder):
        return loaded.embed(images, on_failure=on_failure)
    head = find_uncertainty(loaded, encoder) if Path(encoder).is_dir() else None
    if head is None and loaded.confidence is None:
        return loaded.embed(images, on_failure=on_failure)
    return embed_judged(loaded, images, uncertainty=head, on_failure=on_failure)


def one_item_each(
    vectors: Embeddings, uris: list[str | None] | None, *, group_by: str | None
) -> tuple[Embeddings, list[str | None] | None]:
    """Images that share a value of the column become one item; its uri is that of the first.

    The payload gets 'views', their number, and 'confidence', one number an item.
    """
    from midspan.evaluation.views import first_views, fuse_views

    if group_by is not None:
        groups = vectors.columns.get(group_by)
        if groups is None or groups.ndim != 1:
            known = ", ".join(n for n, c in vectors.columns.items() if c.ndim == 1) or "none"
            raise ConfigError(f"--group-by {group_by}: no such column; there are: {known}")
        vectors = fuse_views(vectors, groups)
        if uris is not None:
            uris = [uris[row] for row in first_views(groups)]
    confidence = vectors.columns.get(CONFIDENCE)
    if confidence is not None and confidence.ndim == 2:
        mean = np.asarray(confidence.mean(axis=1), dtype=np.float64).round(6)
        vectors = vectors.with_columns({CONFIDENCE: mean})
    return vectors, uris
