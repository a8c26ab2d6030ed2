"""The removal of what nobody counts."""

from __future__ import annotations

from collections.abc import Sequence

from midspan.gallery.stores.turns.access import Access
from midspan.gallery.stores.turns.conditions import Before, Condition, Is, Span
from midspan.gallery.stores.turns.engine import MOST, Engine
from midspan.gallery.stores.turns.keys import first_stamp, work_keys
from midspan.gallery.stores.turns.records import WORK

OLD = 24 * 3600.0  # seconds after which nobody fills a collection any more


def sweep(access: Access) -> None:
    """Rows of writes that were broken off, tasks of former work lists, forgotten collections."""
    view = access.view()
    known, engine = view.known, view.engine
    for first, last in known.void:
        low, high = first_stamp(first), first_stamp(last + 1)
        _delete_all(engine, view.collection, [Span("stamp", low, high)])
        for collection in known.collections.values():
            _delete_all(engine, collection, [Span("pk", low, high)])
    former: list[Condition] = [Is("kind", WORK), Before(work_keys(known.epoch))]
    _delete_all(engine, view.collection, former)
    with access.turn() as turn:  # nobody else makes one for a space now
        for name in engine.collections():
            made = name.startswith(f"{view.head.gallery}_vectors_")
            filled = name.startswith(f"{view.head.gallery}_index_") and engine.age(name) > OLD
            if (made or filled) and name not in turn.known.collections.values():
                engine.drop(name)


def _delete_all(engine: Engine, collection: str, where: Sequence[Condition]) -> None:
    while rows := engine.query(collection, where, ["pk"], time=engine.now(), limit=MOST):
        engine.delete(collection, [row["pk"] for row in rows])
