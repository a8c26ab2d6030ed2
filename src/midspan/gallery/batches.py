"""Large writes in parts: items with the columns of their vectors as payload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from midspan.errors import ItemError
from midspan.gallery.records import Draft, Payload
from midspan.spaces import URI, Embeddings


def payloads_of(vectors: Embeddings) -> list[Payload]:
    """The columns of each item, but for its uri."""
    columns = {
        name: column.tolist()
        for name, column in vectors.columns.items()
        if column.ndim == 1 and name != URI
    }
    return [{name: values[row] for name, values in columns.items()} for row in range(len(vectors))]


def write_batches(
    vectors: Embeddings,
    also: Sequence[Embeddings],
    *,
    uris: Sequence[str | None] | None,
    payloads: Sequence[Payload] | None,
    size: int,
) -> Iterator[tuple[list[Draft], list[Embeddings]]]:
    """(items, their vectors in each space); everything is checked before the first is given.

    Where no uris are given the column `uri` of the vectors is taken, where no payloads are given
    their other columns (those with one value an item), so that they can be filtered by.
    """
    ids = vectors.ids.tolist()
    if uris is None and URI in vectors.columns:
        uris = [str(uri) or None for uri in vectors.columns[URI].tolist()]
    if payloads is None:
        payloads = payloads_of(vectors)
    for name, column in (("uris", uris), ("payloads", payloads)):
        if column is not None and len(column) != len(ids):
            raise ItemError(f"{len(column)} {name} for {len(ids)} items; give one each")
    drafts = [
        Draft(
            id=id,
            uri=uris[place] if uris is not None else None,
            payload=payloads[place],
        )
        for place, id in enumerate(ids)
    ]
    known = set(ids)
    for part in also:
        if not (given := set(part.ids.tolist())) <= known:
            raise ItemError(f"a vector for {min(given - known)!r}, which is none of the items")
    for start in range(0, len(drafts), size):
        own = vectors[start : start + size]
        chosen = set(own.ids.tolist())
        others = [
            part[np.array([id in chosen for id in part.ids.tolist()], dtype=bool)] for part in also
        ]
        yield drafts[start : start + size], [part for part in (own, *others) if len(part)]
