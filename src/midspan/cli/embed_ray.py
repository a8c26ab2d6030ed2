"""`midspan embed --ray`: an image set through the workers of a cluster, in its own order again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from midspan.cli.ray_workers import carried, pack_from, seen_here

if TYPE_CHECKING:
    from midspan.data import ImageSet
    from midspan.spaces import Embeddings
    from midspan.upgrade.cluster import Workers


def embed_set(
    images: ImageSet,
    encoder: str,
    *,
    workers: Workers,
    ship_images: bool,
    batch_size: int,
    on_failure: Callable[[str, str], None] | None,
) -> Embeddings:
    """The same vectors, ids and columns as `encoder.embed(images)` gives."""
    from midspan.data.image_uri import ImageUri
    from midspan.encoders.embedding import columns_of
    from midspan.gallery import Item
    from midspan.spaces import Embeddings
    from midspan.upgrade.cluster import embed_on_cluster

    uris = (str(ImageUri.of(images.uri(row)).absolute()) for row in range(len(images)))
    items = [
        Item(id, uri, {}, revision=1, created=0.0, changed=0.0, spaces=())
        for id, uri in zip(images.ids.tolist(), uris, strict=True)
    ]
    space, parts = embed_on_cluster(
        items,
        carried(encoder),
        workers=workers,
        batch=batch_size,
        pack=pack_from(ship_images=ship_images),
        seen_here=None if ship_images else seen_here,
        on_failure=on_failure,
        show=True,
    )
    row_of = {id: row for row, id in enumerate(images.ids.tolist())}
    rows = np.array([row_of[id] for part in parts for id in part.ids.tolist()], dtype=np.int64)
    empty = np.empty((0, space.dim), dtype=np.float32)
    vectors = np.concatenate([empty, *(part.vectors for part in parts)])
    order = np.argsort(rows)
    kept = images[rows[order]]
    return Embeddings(kept.ids, vectors[order], space, columns_of(kept))
