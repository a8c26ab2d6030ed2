"""Items of several images: embedded with the uncertainty of each, then fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from midspan.cli.runtime import Computing
from midspan.errors import ConfigError, EncoderError

if TYPE_CHECKING:
    from midspan.data import ImageSet
    from midspan.encoders.embedding import OnFailure
    from midspan.encoders.load import Embedder
    from midspan.spaces import Column, Embeddings, Space

CONFIDENCE = "confidence"


EmbedViews = Callable[["ImageSet", "OnFailure"], "Embeddings"]


def embedder_of_views(
    encoder: str, *, computing: Computing | None = None
) -> tuple[Space, EmbedViews]:
    """With confidence and variance of each image, where the encoder gives them."""
    from midspan.encoders.load import load_embedder, load_encoder, may_judge

    how = computing or Computing()
    if may_judge(encoder):  # a graph gives no uncertainty
        return _judging(load_encoder(encoder, device=how.device), encoder, how)
    return _plain(load_embedder(encoder, device=how.device, runtime=how.runtime), encoder, how)


def _plain(loaded: Embedder, encoder: str, how: Computing) -> tuple[Space, EmbedViews]:
    if not loaded.takes_images:
        raise EncoderError(
            f"{encoder} embeds vectors, not images; embed them with midspan embed, and give the "
            "file as --vectors"
        )

    def plain(images: ImageSet, on_failure: OnFailure) -> Embeddings:
        return loaded.embed(
            images, batch_size=how.batch_size, progress=False, on_failure=on_failure
        )

    return loaded.space, plain


def _judging(loaded: Embedder, folder: str, how: Computing) -> tuple[Space, EmbedViews]:
    from midspan.encoders import Encoder
    from midspan.encoders.uncertainty import embed_judged, find_uncertainty

    if not isinstance(loaded, Encoder) or not loaded.takes_images:
        return _plain(loaded, folder, how)
    encoder, head = loaded, find_uncertainty(loaded, folder)
    if head is None and encoder.confidence is None:
        return _plain(encoder, folder, how)

    def judged(images: ImageSet, on_failure: OnFailure) -> Embeddings:
        return embed_judged(
            encoder,
            images,
            uncertainty=head,
            batch_size=how.batch_size,
            progress=False,
            on_failure=on_failure,
        )

    return encoder.space, judged


def group_column(images: ImageSet, group_by: str) -> tuple[ImageSet, Column]:
    """(images, item of each); columns that differ between views of an item are left out.

    `fuse_views` drops them too, but a part of the images does not show which differ in all.
    """
    groups = images.labels if group_by == "labels" else images.columns.get(group_by)
    if groups is None or groups.ndim != 1:
        known = [name for name, column in images.columns.items() if column.ndim == 1]
        raise _no_column(group_by, [*known, *(["labels"] if images.labels is not None else [])])
    _, first, place = np.unique(groups, return_index=True, return_inverse=True)

    def agrees(column: Column) -> bool:
        return bool((column == column[first][place]).all())

    columns = {name: column for name, column in images.columns.items() if agrees(column)}
    labels = images.labels if images.labels is not None and agrees(images.labels) else None
    split = images.split if images.split is not None and agrees(images.split) else None
    return replace(images, columns=columns, labels=labels, split=split), groups


def _no_column(name: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"--group-by {name}: no such column; there are: {', '.join(known) or 'none'}"
    )


def one_item_each(
    vectors: Embeddings, uris: Sequence[str | None] | None, *, group_by: str | None
) -> tuple[Embeddings, Sequence[str | None] | None]:
    """Images that share a value of the column become one item; its uri is that of the first.

    The payload gets 'views', their number, and 'confidence', one number an item.
    """
    from midspan.evaluation.views import first_views, fuse_views
    from midspan.spaces import URI

    if uris is None and URI in vectors.columns:
        uris = vectors.columns[URI].tolist()
    if group_by is not None:
        groups = vectors.columns.get(group_by)
        if groups is None or groups.ndim != 1:
            raise _no_column(group_by, [n for n, c in vectors.columns.items() if c.ndim == 1])
        vectors = fuse_views(vectors, groups)
        if uris is not None:
            uris = [uris[row] for row in first_views(groups)]
    confidence = vectors.columns.get(CONFIDENCE)
    if confidence is not None and confidence.ndim == 2:
        mean = np.asarray(confidence.mean(axis=1), dtype=np.float64).round(6)
        vectors = vectors.with_columns({CONFIDENCE: mean})
    return vectors, uris
