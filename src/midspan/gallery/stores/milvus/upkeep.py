"""Upkeep: an approximate index for spaces that have grown large, closed segments for the others.

A new index means a new collection: it is filled and indexed while the old one answers, then one
write puts it in its place.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from midspan.errors import StoreError
from midspan.gallery.stores.milvus import schema
from midspan.gallery.stores.milvus.connection import LOAD_SECONDS, Connection
from midspan.gallery.stores.turns.access import Access
from midspan.gallery.stores.turns.conditions import After, Span
from midspan.gallery.stores.turns.engine import MOST
from midspan.gallery.stores.turns.keys import first_stamp
from midspan.gallery.stores.turns.turn import Turn
from midspan.gallery.stores.turns.view import vectors
from midspan.spaces import Space

INDEX_SECONDS = 3600.0
SEALED = 3  # Milvus' number for a segment that takes no more rows
SMALL = 1024  # rows; it does not index a smaller segment
SEAL_FROM = 10_000  # vectors; fewer are compared soon enough wherever they are
PQ_PART = 4  # numbers that one code of IVF_PQ stands for, if m is not given


def index(server: Connection, access: Access) -> None:
    """An approximate index for each live space that is large and has none.

    A smaller one is sealed: Milvus compares the rows of a segment that still grows more slowly.
    """
    for space in access.view().known.state.live:
        view = access.view()
        known = view.known
        if space not in known.collections or space in known.indexed:
            continue
        every = [Span("pk", low=0)]
        count = view.engine.count(known.collections[space], every, time=view.head.time)
        if count > server.place.index_from:
            _move_to_index(server, access, space)
        elif count >= SEAL_FROM:
            _seal(server, known.collections[space])


def _index_of(server: Connection, space: Space) -> dict[str, Any]:
    """As the location says; what depends on the space is put in."""
    kind, params = server.place.index["index_type"], dict(server.place.index["params"])
    if params.get("m") == 0:
        params["m"] = max(1, space.dim // PQ_PART)
    return {"index_type": kind, "params": params}


def _move_to_index(server: Connection, access: Access, space: str) -> None:
    view = access.view()
    known_space = view.known.state.spaces[space]
    index = _index_of(server, known_space)
    old = view.known.collections[space]
    new = f"{view.head.gallery}_index_{first_stamp(view.head.number):x}{view.head.turn}"
    schema.make_vectors(server, new, known_space, index)
    last = -1
    for page in vectors(view, space, after=last):
        server.put(new, page, beat=lambda: None)
        last = page[-1]["pk"]
    try:
        _wait_for_index(server, new)
    except BaseException:
        server.drop(new)
        raise
    with access.turn() as turn:
        if turn.known.collections.get(space) != old:
            turn.drop(new)  # somebody else was faster, or the space is forgotten
            return
        for page in vectors(turn.view, space, after=last):
            server.put(new, page, beat=turn.beat)
        if turn.head.vectors != view.head.vectors:
            turn.engine.delete(new, list(_keys(turn, new) - _keys(turn, old)))
        known = turn.known
        turn.change(
            dataclasses.replace(
                known,
                collections={**known.collections, space: new},
                indexed={**known.indexed, space: index},
            )
        )
        turn.drop(old)


def _keys(turn: Turn, collection: str) -> set[int]:
    found: set[int] = set()
    after, now = -1, turn.engine.now()
    while page := turn.engine.query(collection, [After(after)], ["pk"], time=now, limit=MOST):
        found |= {row["pk"] for row in page}
        after = page[-1]["pk"]
        turn.beat()
    return found


def _wait_for_index(server: Connection, collection: str) -> None:
    """Until all rows are in place, and then until the index is built and in use."""
    _seal(server, collection)
    _wait(server, collection, _indexed, seconds=INDEX_SECONDS)
    _check_begun(server, collection)


def _seal(server: Connection, collection: str) -> None:
    with server.errors():
        server.client.flush(collection)
    schema.wait_until_loaded(server, collection)
    _wait(server, collection, _sealed, seconds=LOAD_SECONDS)


def _wait(
    server: Connection,
    collection: str,
    ready: Callable[[Connection, str], bool],
    *,
    seconds: float,
) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not ready(server, collection):
        time.sleep(0.1)


def _check_begun(server: Connection, collection: str) -> None:
    """A large index may take longer than one waits; one that is not begun will never be."""
    if _indexed(server, collection):
        return
    with server.errors():
        told = server.client.describe_index(collection, "vector")
    if told["indexed_rows"] == 0:
        raise StoreError(
            f"{server.shown}: in {INDEX_SECONDS:g} s the server built nothing of the index "
            f"{told['index_type']}; is it made and set up for it? (DISKANN wants a server with "
            "queryNode.enableDisk and fast disks.) The gallery goes on without"
        )


def _segments(server: Connection, collection: str) -> list[Any]:
    """The parts of a collection, as those who answer have them."""
    with server.errors():
        return list(server.client._get_connection().get_query_segment_info(collection))


def _sealed(server: Connection, collection: str) -> bool:
    segments = _segments(server, collection)
    return bool(segments) and all(segment.state == SEALED for segment in segments)


def _indexed(server: Connection, collection: str) -> bool:
    return all(
        segment.indexID or segment.num_rows < SMALL for segment in _segments(server, collection)
    )
