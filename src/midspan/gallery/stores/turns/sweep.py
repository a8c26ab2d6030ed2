"""The removal of what nobody counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from midspan.gallery.stores.turns.access import Access
from midspan.gallery.stores.turns.conditions import After, Before, Condition, Is, Span
from midspan.gallery.stores.turns.engine import MOST, Engine
from midspan.gallery.stores.turns.keys import first_stamp, work_keys
from midspan.gallery.stores.turns.records import ITEM, WORK
from midspan.gallery.stores.turns.turn import Turn
from midspan.gallery.stores.turns.view import View

OLD = 24 * 3600.0  # seconds after which nobody fills a collection any more


def sweep(access: Access) -> None:
    """Rows of writes that were broken off, tasks of former work lists, forgotten collections, and
    rows that were removed before: Milvus 2.3 brings some back when it compacts its segments."""
    view = access.view()
    known, engine = view.known, view.engine
    for first, last in known.void:
        low, high = first_stamp(first), first_stamp(last + 1)
        _delete_all(engine, view.collection, [Span("stamp", low, high)])
        for collection in known.collections.values():
            _delete_all(engine, collection, [Span("pk", low, high)])
    former: list[Condition] = [Is("kind", WORK), Before(work_keys(known.epoch))]
    _delete_all(engine, view.collection, former)
    _remove_returned(access)
    with access.turn() as turn:  # nobody else makes one for a space now
        for name in engine.collections():
            made = name.startswith(f"{view.head.gallery}_vectors_")
            filled = name.startswith(f"{view.head.gallery}_index_") and engine.age(name) > OLD
            if (made or filled) and name not in turn.known.collections.values():
                engine.drop(name)


def _remove_returned(access: Access) -> None:
    """What the server brought back after it was removed. It is rare, and takes a look at all: so
    numbers are compared first."""
    if access.read(_doubled):
        with access.turn() as turn:
            turn.remove(_replaced(turn))
    for space in access.read(_crowded):
        with access.turn() as turn:
            if space in turn.known.collections:
                turn.remove_vectors(space, _unnamed(turn, space))


def _doubled(view: View) -> bool:
    counts = view.all_counts()
    upgrading = view.known.state.target is not None
    if upgrading and view.count(view.working()) > counts.pending + counts.failed:
        return True
    return any(view.held(space) < named for space, named in counts.stored.items())


def _crowded(view: View) -> list[str]:
    named = view.all_counts().stored
    return [space for space in named if view.held(space) > named[space]]


def _delete_all(engine: Engine, collection: str, where: Sequence[Condition]) -> None:
    while rows := engine.query(collection, where, ["pk"], time=engine.now(), limit=MOST):
        engine.delete(collection, [row["pk"] for row in rows])


def _replaced(turn: Turn) -> Iterator[str]:
    """Keys of items' and tasks' records that are followed by a newer one of the same."""
    for where in ([Is("kind", ITEM)], turn.view.working()):
        before = ""
        for page in turn.view.light(where, []):
            turn.beat()
            for row in page:
                if before and _thing(row["pk"]) == _thing(before):
                    yield before
                before = row["pk"]


def _thing(key: str) -> str:
    """A key without its stamp."""
    return key.rpartition(".")[0]


def _unnamed(turn: Turn, space: str) -> Iterator[int]:
    """Stamps of vectors that no item has."""
    view = turn.view
    number, after = view.known.numbers[space], -1
    while page := view.engine.query(
        view.known.collections[space],
        [After(after), *view.counts_of("pk")],
        ["pk", "row"],
        time=view.head.time,
        limit=MOST,
    ):
        turn.beat()
        items = view.by_row(row["row"] for row in page)
        for row in page:
            item = items.get(row["row"])
            if item is None or item.vectors.get(number) != row["pk"]:
                yield row["pk"]
        after = page[-1]["pk"]
