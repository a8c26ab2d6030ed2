"""What a gallery that exists can tell about a larger one like it. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from midspan.gallery import Gallery
from midspan.gallery.stores import scheme_of
from midspan.spaces import Space
from midspan.upgrade.embed import Embed
from midspan.upgrade.plan import TIMED, WARM_UP, seconds_per_item

STORES = {
    "sqlite": "embedded",
    "postgresql": "pgvector",
    "postgres": "pgvector",
    "milvus": "milvus",
    "qdrant": "qdrant",
    "qdrant+local": "qdrant",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """None: nothing was found to measure it on."""

    store: str | None
    dim: int
    image_kb: float | None  # mean of the image files at the uris
    images_per_second: float | None  # of this machine with the encoder, reading included


def ask_gallery(gallery: Gallery, *, space: Space | None, embed: Embed | None) -> Sample:
    """space: the new one; None: vectors stay as long as they are."""
    seconds = None
    if embed is not None and space is not None:
        seconds = seconds_per_item(gallery, embed, space, [])
    items = gallery.store.scan(filter=None, missing=None, after="", limit=WARM_UP + TIMED)
    files = [Path(item.uri) for item in items if item.uri is not None]
    sizes = [file.stat().st_size for file in files if file.is_file()]
    return Sample(
        store=STORES.get(scheme_of(gallery.location)),
        dim=(space or gallery.space).dim,
        image_kb=sum(sizes) / len(sizes) / 1e3 if sizes else None,
        images_per_second=None if not seconds else 1 / seconds,
    )
