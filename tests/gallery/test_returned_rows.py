"""A server that brings removed rows back, as Milvus 2.3 does when it compacts its segments."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from midspan.gallery.items import Draft
from midspan.gallery.stores import create_store
from midspan.gallery.stores.turns.engine import Row
from midspan.gallery.stores.turns.store import TurnStore
from midspan.spaces import Embeddings
from tests.gallery.samples import NEW, OLD, add, embed, entry, start

IDS = [f"i{number}" for number in range(6)]


class Returning:
    """Remembers what an engine removed, and puts it back."""

    def __init__(self, store: TurnStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._engine: Any = store._engine
        self._rows: dict[tuple[str, str | int], tuple[str, Row, dict[str, Any]]] = {}
        self._removed: list[tuple[str, str | int]] = []
        for verb in ("insert", "insert_vectors"):
            monkeypatch.setattr(self._engine, verb, self._noting(verb, getattr(self._engine, verb)))
        delete = self._engine.delete

        def note(collection: str, keys: Sequence[str | int]) -> None:
            self._removed += [(collection, key) for key in keys]
            delete(collection, keys)

        monkeypatch.setattr(self._engine, "delete", note)

    def _noting(self, verb: str, insert: Any) -> Any:
        def note(collection: str, rows: Iterable[Row], **settings: Any) -> None:
            known = list(rows)
            for row in known:
                self._rows[collection, row["pk"]] = verb, dict(row), settings
            insert(collection, known, **settings)

        return note

    def bring_back(self, *, kinds: Iterable[str]) -> int:
        """Of records, those whose key begins so; vectors have numbers."""
        count = 0
        for collection, key in dict.fromkeys(self._removed):
            kind = key[0] if isinstance(key, str) else "vector"
            if (collection, key) in self._rows and kind in kinds:
                verb, row, settings = self._rows[collection, key]
                getattr(self._engine, verb)(collection, [row], **settings)
                count += 1
        return count


@pytest.fixture
def store() -> Iterator[TurnStore]:
    pytest.importorskip("qdrant_client")
    made = create_store(f"qdrant+local://:memory:/r{uuid.uuid4().hex}", OLD, entry=entry("create"))
    assert isinstance(made, TurnStore)
    yield made
    made.close()


@pytest.fixture
def server(store: TurnStore, monkeypatch: pytest.MonkeyPatch) -> Returning:
    server = Returning(store, monkeypatch)
    add(store, IDS)
    start(store)
    return server


def claim(store: TurnStore, limit: int = 20) -> list[str]:
    return [task.item.id for task in store.claim(worker="me", limit=limit, seconds=60.0)]


def fill(store: TurnStore, ids: Sequence[str]) -> None:
    vectors: Embeddings = embed(list(ids), NEW)
    store.fill(vectors, revisions=[1] * len(ids))


def test_work_that_comes_back_is_given_out_once(store: TurnStore, server: Returning) -> None:
    assert claim(store) == IDS
    assert store.release(worker="me") == len(IDS)
    assert server.bring_back(kinds="w") == 2 * len(IDS)  # as it was made, and as it was claimed
    assert claim(store) == IDS


def test_work_that_is_done_or_gone_is_not_given_out_again(
    store: TurnStore, server: Returning
) -> None:
    assert claim(store, limit=3) == IDS[:3]
    fill(store, IDS[:2])
    store.delete([IDS[2]])
    assert server.bring_back(kinds="w") > 0
    assert claim(store) == IDS[3:]
    fill(store, IDS[3:])
    counts = store.count()
    assert (counts.items, counts.live[NEW.fingerprint], counts.pending) == (5, 5, 0)


def test_of_two_records_of_an_item_the_newer_counts(store: TurnStore, server: Returning) -> None:
    claim(store)
    fill(store, IDS)
    assert server.bring_back(kinds="i") >= len(IDS)
    for item in store.get(IDS):
        assert set(item.spaces) == {OLD.fingerprint, NEW.fingerprint}


def test_optimise_removes_what_came_back(store: TurnStore, server: Returning) -> None:
    claim(store, limit=4)
    fill(store, IDS[:4])
    store.upsert(
        [Draft(IDS[0])], [embed([IDS[0]], NEW)], mode="replace"
    )  # an old vector is removed
    before, found = store.count(), store.get(IDS)
    assert store.check() == []
    assert server.bring_back(kinds=["i", "w", "vector"]) > 0
    assert store.check() != []
    store.optimise()
    assert store.check() == []
    assert store.count() == before
    assert store.get(IDS) == found
    assert claim(store) == IDS[4:]
