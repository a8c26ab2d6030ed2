"""Upkeep: an index for spaces that have grown large, and the removal of what nobody counts.

A new index means a new collection: it is filled and indexed while the old one answers, then one
write puts it in its place.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from midspan.gallery.stores.milvus import schema
from midspan.gallery.stores.milvus.access import Access
from midspan.gallery.stores.milvus.records import WORK, first_stamp, work_keys
from midspan.gallery.stores.milvus.server import LOAD_SECONDS, MOST, Server
from midspan.gallery.stores.milvus.turn import Turn
from midspan.gallery.stores.milvus.view import vectors

INDEX_FROM = 100_000  # vectors; comparing fewer of them is fast enough, and exact
INDEX_SECONDS = 3600.0
SEALED = 3  # Milvus' number for a segment that takes no more rows
SMALL = 1024  # rows; it does not index a smaller segment
OLD = 24 * 3600.0  # seconds after which nobody fills a collection any more
# Values of the HNSW paper's range (arXiv:1603.09320, section 4.1): M 5 to 48, construction 100+.
HNSW: dict[str, Any] = {"index_type": "HNSW", "params": {"M": 24, "efConstruction": 200}}


def index(access: Access) -> None:
    """An approximate index for each live space that is large and has none."""
    for space in access.view().known.state.live:
        view = access.view()
        known = view.known
        if space not in known.collections or space in known.indexed:
            continue
        if view.server.count(known.collections[space], "pk >= 0", time=view.head.time) > INDEX_FROM:
            _move_to_index(access, space)


def _move_to_index(access: Access, space: str) -> None:
    server, view = access.server, access.view()
    old = view.known.collections[space]
    new = f"{view.head.gallery}_index_{first_stamp(view.head.number):x}{view.head.turn}"
    schema.make_vectors(server, new, view.known.state.spaces[space], HNSW)
    last = -1
    for page in vectors(view, space, after=last):
        server.insert(new, page, beat=lambda: None)
        last = page[-1]["pk"]
    _wait_for_index(server, new)
    with access.turn() as turn:
        if turn.known.collections.get(space) != old:
            turn.drop(new)  # somebody else was faster, or the space is forgotten
            return
        for page in vectors(turn.view, space, after=last):
            server.insert(new, page, beat=turn.beat)
        if turn.head.vectors != view.head.vectors:
            server.delete(new, list(_keys(turn, new) - _keys(turn, old)))
        known = turn.known
        turn.change(
            dataclasses.replace(
                known,
                collections={**known.collections, space: new},
                indexed=(*known.indexed, space),
            )
        )
        turn.drop(old)


def _keys(turn: Turn, collection: str) -> set[int]:
    found: set[int] = set()
    after, now = -1, turn.server.now()
    while page := turn.server.query(collection, f"pk > {after}", ["pk"], time=now, limit=MOST):
        found |= {row["pk"] for row in page}
        after = page[-1]["pk"]
        turn.beat()
    return found


def _wait_for_index(server: Server, collection: str) -> None:
    """Until all rows are in place, and then until the index is built and in use."""
    with server.errors():
        server.client.flush(collection)
    schema.wait_until_loaded(server, collection)
    for seconds, ready in ((LOAD_SECONDS, _sealed), (INDEX_SECONDS, _indexed)):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not ready(server, collection):
            time.sleep(0.1)


def _segments(server: Server, collection: str) -> list[Any]:
    """The parts of a collection, as those who answer have them."""
    with server.errors():
        return list(server.client._get_connection().get_query_segment_info(collection))


def _sealed(server: Server, collection: str) -> bool:
    segments = _segments(server, collection)
    return bool(segments) and all(segment.state == SEALED for segment in segments)


def _indexed(server: Server, collection: str) -> bool:
    return all(
        segment.indexID or segment.num_rows < SMALL for segment in _segments(server, collection)
    )


def sweep(access: Access) -> None:
    """Rows of writes that were broken off, tasks of former work lists, forgotten collections."""
    view = access.view()
    known, server = view.known, view.server
    for first, last in known.void:
        low, high = first_stamp(first), first_stamp(last + 1)
        _delete_all(server, view.collection, f"stamp >= {low} and stamp < {high}")
        for collection in known.collections.values():
            _delete_all(server, collection, f"pk >= {low} and pk < {high}")
    _delete_all(server, view.collection, f'kind == {WORK} and pk < "{work_keys(known.epoch)}"')
    with access.turn() as turn:  # nobody else makes one for a space now
        for name in server.collections():
            made = name.startswith(f"{view.head.gallery}_vectors_")
            filled = name.startswith(f"{view.head.gallery}_index_") and server.age(name) > OLD
            if (made or filled) and name not in turn.known.collections.values():
                server.drop(name)


def _delete_all(server: Server, collection: str, where: str) -> None:
    while rows := server.query(collection, where, ["pk"], time=server.now(), limit=MOST):
        server.delete(collection, [row["pk"] for row in rows])
