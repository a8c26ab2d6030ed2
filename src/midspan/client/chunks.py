"""Many items, in requests that a service takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from midspan.client.transport import as_json
from midspan.spaces import Embeddings

LARGEST_WRITE = 2000  # items in one request, as the service takes them
LARGEST_BODY = 4 * 2**20  # bytes of them; the service's own default limit is twice that


def chunks(
    embeddings: Embeddings,
    *,
    uris: Sequence[str | None] | None,
    payloads: Sequence[Mapping[str, Any]] | None,
    also: Sequence[Embeddings] = (),
) -> Iterator[list[dict[str, Any]]]:
    """As many items as go in one request. also: their vectors in further spaces, by id."""
    further = [(one, {id: row for row, id in enumerate(one.ids.tolist())}) for one in also]
    items: list[dict[str, Any]] = []
    size = 0
    for row, id in enumerate(embeddings.ids.tolist()):
        item = {
            "id": id,
            "vector": embeddings.vectors[row].tolist(),
            "also": {
                one.space.fingerprint: one.vectors[rows[id]].tolist()
                for one, rows in further
                if id in rows
            },
            "uri": None if uris is None else uris[row],
            "payload": {} if payloads is None else dict(payloads[row]),
        }
        length = len(as_json(item))
        if items and (len(items) == LARGEST_WRITE or size + length > LARGEST_BODY):
            yield items
            items, size = [], 0
        items.append(item)
        size += length
    if items:
        yield items
