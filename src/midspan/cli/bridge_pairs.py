"""Pairs for a bridge from a gallery: its vectors, and a new encoder's of the same images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import typer

from midspan import progress
from midspan.errors import DataError

if TYPE_CHECKING:
    from midspan.gallery import Gallery, Item
    from midspan.spaces import Embeddings

PAGE = 1000
STEP = 64  # images embedded at a time
SEED = 0


def pairs_of_gallery(location: str, encoder: str, *, most: int) -> tuple[Embeddings, Embeddings]:
    """(in the gallery's space, in the encoder's) of up to `most` items, chosen at random."""
    from midspan.cli.upgrade_sources import embedder_of
    from midspan.gallery import Gallery

    with Gallery.open(location) as gallery:
        space, embed = embedder_of(encoder)
        chosen = _sample(gallery, most)
        parts: list[Embeddings] = []
        skipped: dict[str, str] = {}
        with progress.bar(f"embed with {space.name}", total=len(chosen), unit="items") as done:
            for start in range(0, len(chosen), STEP):
                made = embed(chosen[start : start + STEP])
                parts.append(made.vectors)
                skipped |= {**made.failed, **made.hopeless}
                done(len(chosen[start : start + STEP]))
        for id, why in list(skipped.items())[:5]:
            typer.echo(f"skipped {id}: {why}", err=True)
        if not any(len(part) for part in parts):
            raise DataError(f"{location}: no image of its items could be embedded by {encoder}")
        new = parts[0]
        for part in parts[1:]:
            new = new.joined_with(part)
        old = gallery.vectors(new.ids.tolist(), space=gallery.space.fingerprint)
    return old, new.take(old.ids)


def _sample(gallery: Gallery, most: int) -> list[Item]:
    """Those that have an image and a vector in the gallery's space."""
    live, with_image, after = gallery.space.fingerprint, list[str](), ""
    while page := gallery.scan(after=after, limit=PAGE):
        with_image += [item.id for item in page if item.uri is not None and live in item.spaces]
        after = page[-1].id
    if not with_image:
        raise DataError(f"{gallery.location}: no item has an image (uri) and a vector")
    rows = np.random.default_rng(SEED).permutation(len(with_image))[:most]
    ids = [with_image[row] for row in sorted(rows.tolist())]
    return [
        item
        for start in range(0, len(ids), PAGE)
        for item in gallery.get_many(ids[start : start + PAGE])
    ]
