"""What is Milvus' own on a real server: taking turns, writers that die, the index, its death."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from midspan.errors import GalleryError, StoreError
from midspan.gallery import Gallery
from midspan.gallery.filters import And, Eq, Filter, In, Range, matches
from midspan.gallery.items import Draft
from midspan.gallery.stores.memory import MemoryStore
from midspan.gallery.stores.milvus import connection, schema, server, upkeep
from midspan.gallery.stores.milvus.connection import Connection
from midspan.gallery.stores.milvus.place import KINDS, split_location
from midspan.gallery.stores.milvus.server import Server
from midspan.gallery.stores.milvus.store import MilvusStore
from midspan.gallery.stores.milvus.where import where
from midspan.gallery.stores.turns.conditions import Is, Passing, Span
from midspan.gallery.stores.turns.engine import Sought
from midspan.gallery.stores.turns.head import read_head
from midspan.gallery.stores.turns.turn import Removals, Turn
from midspan.spaces import Embeddings
from tests.gallery.milvus import Milvus, Spares, wheel
from tests.gallery.samples import NEW, OLD, add, drafts, embed, entry, found, near, start, unit
from tests.gallery.script import picture, same_search, step

ON_SERVER = [pytest.mark.server, pytest.mark.slow, pytest.mark.milvus]


def on_server(test: Any) -> Any:
    for mark in ON_SERVER:
        test = mark(test)
    return test


@pytest.fixture
def place(milvus: Milvus, spares: Spares, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(schema, "make_collection", spares.make)
    name = "g" + uuid.uuid4().hex[:12]
    yield f"{milvus.location(name)}?lease=2"
    spares.forget(name)


@pytest.fixture
def store(place: str) -> Iterator[MilvusStore]:
    made = MilvusStore.create(place, OLD, entry=entry("create"))
    yield made
    made.close()


@pytest.fixture
def mortal() -> Iterator[Milvus]:
    data = wheel()
    if data is None:
        pytest.skip("no Milvus server")
    made = Milvus(data, session=5)
    yield made
    made.stop()


@on_server
def test_filters_on_the_server_mean_what_they_mean_here(store: MilvusStore) -> None:
    values: list[Any] = [None, True, False, 0, 1, -1, 5, 5.0, 5.5, -2.5, 2**53 + 1, 1e20, 0.1]
    values += ["", "a", "acme", "Acme", "ä", "5", "true", "日本", "%", "x'y", ["acme"], [5], {}]
    payloads = [{"p": value} for value in values] + [{"p": {"q": value}} for value in values]
    payloads += [{}, {"p": "acme", "long": "x" * 60_000}, {"p": 5, "long": "x" * 60_000}]
    ids = [f"i{number:03}" for number in range(len(payloads))]
    add(store, ids, payloads=payloads)
    filters: list[Filter] = []
    for path in ("p", "p.q"):
        for value in values[:-3]:
            filters.append(Eq(path, value))
            if value is not None and not isinstance(value, bool):
                filters += [Range(path, gt=value), Range(path, lte=value)]
    filters += [In("p", (5, "acme", True)), And((Range("p", gte=0, lt=5.25), Eq("p", 5)))]
    view, translated = store._access.view(), 0
    for filter in filters:
        condition, sure = where(filter)
        if not condition:
            continue
        translated += 1
        seen = {r.body["id"] for r in view.read([Is("kind", 0), Passing(filter)], limit=1000)}
        wanted = {id for id, one in zip(ids, payloads, strict=True) if matches(filter, one)}
        assert sure
        assert seen - set(ids[-2:]) == wanted - set(ids[-2:]), filter
        assert set(ids[-2:]) <= seen  # Milvus does not see long payloads
        if translated % 7 == 0:
            hits = store.search(near(store, embed(["q"]).vectors, k=100, filter=filter))[0]
            assert {hit.id for hit in hits} == wanted
    assert translated > 80


@on_server
def test_two_writers_of_one_new_id_do_not_fail(store: MilvusStore, place: str) -> None:
    other = MilvusStore.open(place)
    failures: list[Exception] = []

    def write(handle: MilvusStore, seed: int) -> None:
        try:
            for number in range(3):
                draft = Draft(f"i{number}", payload={"seed": seed})
                handle.upsert([draft], [embed([draft.id], seed=seed)], mode="put")
        except Exception as error:
            failures.append(error)

    threads = [
        threading.Thread(target=write, args=(handle, seed))
        for seed, handle in enumerate([store, other, store, other])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.close()
    assert failures == []
    items = store.get([f"i{number}" for number in range(3)])
    assert [item.revision for item in items] == [4] * 3
    for item in items:
        seed = item.payload["seed"]
        hits = store.search(near(store, embed([item.id], seed=seed).vectors, k=1))[0]
        assert (hits[0].id, hits[0].payload) == (item.id, {"seed": seed})
    assert store.check() == []


class Died(BaseException):
    """Stands in for the death of the process: nothing is put in order."""


@on_server
def test_a_writer_that_dies_leaves_nothing_half_done(
    store: MilvusStore, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, ["a", "b"])
    before = picture(store)
    with monkeypatch.context() as patch:
        patch.setattr(Turn, "give_up", lambda self: None)
        patch.setattr(Turn, "commit", die)  # after its rows, before the head's new name
        with pytest.raises(Died):
            store.upsert(drafts(["a", "c"]), [embed(["a", "c"], seed=1)], mode="put")
    assert read_head(store._engine).phase == "held"
    assert picture(store) == before
    other = MilvusStore.open(place)
    assert picture(other) == before
    begun = time.monotonic()
    add(other, ["d"])  # waits for the lease
    assert time.monotonic() - begun > 1.5
    assert [item.id for item in store.scan(filter=None, missing=None, after="", limit=9)] == [
        "a",
        "b",
        "d",
    ]
    assert found(store, near(store, embed(["c"], seed=1).vectors)) == found(
        other, near(other, embed(["c"], seed=1).vectors)
    )
    assert store.check() == []
    store.optimise()  # and the leftovers go
    void = store._access.view().known.void
    assert void == ((3, 3),)
    collection = store._access.view().collection
    rows = store._engine.query(collection, [Span("stamp", 3 << 24, 4 << 24)], ["pk"], time=0)
    assert rows == []
    other.close()


def die(turn: Turn) -> None:
    raise Died


@on_server
def test_a_writer_that_dies_after_its_write_has_written(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, ["a", "b"])
    with monkeypatch.context() as patch:
        patch.setattr(Removals, "carry_out", lambda self, server, head: None)
        store.upsert(drafts(["a"]), [embed(["a"], seed=1)], mode="replace")
        assert read_head(store._engine).phase == "done"
    assert [(item.id, item.revision) for item in store.get(["a", "b"])] == [("a", 2), ("b", 1)]
    assert read_head(store._engine).phase == "free"  # the reader put it in order
    assert store.count().stored == {OLD.fingerprint: 2}
    assert store.check() == []


@on_server
def test_a_writer_that_was_only_slow_cannot_write_any_more(store: MilvusStore, place: str) -> None:
    add(store, ["a"])
    other = MilvusStore.open(place)
    with pytest.raises(StoreError, match=r"than the lease of 2 s.*nothing of it was written"):
        write_slowly(store, other)
    assert store.count().items == 2
    add(store, ["c"])
    assert [item.id for item in other.get(["a", "b", "c"])] == ["a", "b", "c"]
    other.close()


def write_slowly(store: MilvusStore, other: MilvusStore) -> None:
    with store._access.turn() as turn:
        add(other, ["b"])  # takes over when the lease has ended
        (stored,) = turn.view.by_id(["a"]).values()
        turn.put(
            [dataclasses.replace(stored, id="ghost").record(turn.stamp(), plain=lambda *_: True)]
        )


@pytest.fixture
def settled(milvus: Milvus, spares: Spares) -> Iterator[MilvusStore]:
    """A gallery with settings of its own."""
    name = "g" + uuid.uuid4().hex[:12]
    settings = "shards=2&partitions=4&index=IVF_SQ8&nlist=16"
    MilvusStore.create(f"{milvus.location(name)}?{settings}", OLD, entry=entry("create")).close()
    with pytest.raises(GalleryError, match="made with shards=2"):
        MilvusStore.open(f"{milvus.location(name)}?shards=3")
    made = MilvusStore.open(
        f"{milvus.location(name)}?breadth=16&consistency=bounded"
    )  # it knows how
    # it was made
    yield made
    made.close()
    spares.forget(name)


@on_server
def test_an_index_is_built_when_it_pays_while_writes_go_on(
    settled: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = settled
    gallery, rng = Gallery(store), np.random.default_rng(0)
    ids = [f"i{number:05}" for number in range(1200)]
    gallery.add(
        Embeddings(ids=np.array(ids), vectors=unit(rng, 1200), space=OLD),
        payloads=[{"n": number % 10} for number in range(1200)],
    )
    store.optimise()
    assert store._access.view().known.indexed == {}  # so few are compared one by one
    queries = unit(rng, 10)
    exact = gallery.search(queries, space=OLD, k=10)
    assert gallery.search(queries, space=OLD, k=10, exact=True) == exact
    engine = store._engine
    assert isinstance(engine, Server)
    engine.place = dataclasses.replace(engine.place, index_from=500)
    monkeypatch.setattr(upkeep, "INDEX_SECONDS", 60.0)
    wait = upkeep._wait_for_index

    def write_meanwhile(where: Connection, collection: str) -> None:
        wait(where, collection)
        gallery.delete(ids[:5])
        gallery.add(embed(["late"]))

    monkeypatch.setattr(upkeep, "_wait_for_index", write_meanwhile)
    store.optimise()
    collection = store._access.view().known.collections[OLD.fingerprint]
    made = engine.client.describe_collection(collection)
    assert (made["num_shards"], made["num_partitions"]) == (2, 4)
    assert engine.client.describe_index(collection, "vector")["index_type"] == "IVF_SQ8"
    assert store._access.view().known.indexed == {
        OLD.fingerprint: {"index_type": "IVF_SQ8", "params": {"nlist": 16}}
    }
    assert store.check() == []
    store.optimise()  # again does no harm
    gone = set(ids[:5])
    for filter in (None, {"n": 3}):
        rough = gallery.search(queries, space=OLD, k=10, filter=filter)
        best = gallery.search(queries, space=OLD, k=10, filter=filter, exact=True)
        shares = [
            len({hit.id for hit in one} & {hit.id for hit in other}) / 10
            for one, other in zip(rough, best, strict=True)
        ]
        assert np.mean(shares) >= 0.95
        assert not gone & {hit.id for hits in (*rough, *best) for hit in hits}
    again = gallery.search(queries, space=OLD, k=10, exact=True)
    for now, then in zip(again, exact, strict=True):
        kept = [hit for hit in then if hit.id not in gone]
        assert [hit for hit in now if hit in kept] == kept
    assert gallery.search(embed(["late"]), k=1)[0][0].id == "late"


@on_server
def test_many_requests_and_closed_segments_give_the_same_answers(
    store: MilvusStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, rng = Gallery(store), np.random.default_rng(1)
    ids = np.array([f"i{number:04}" for number in range(400)])
    gallery.add(Embeddings(ids=ids, vectors=unit(rng, 400), space=OLD))
    queries = unit(rng, 9)
    before = gallery.search(queries, space=OLD, k=10, exact=True)
    monkeypatch.setattr(server, "NUMBERS", 2 * 400 * OLD.dim)
    assert gallery.search(queries, space=OLD, k=10, exact=True) == before
    engine, collection = store._engine, store._access.view().known.collections[OLD.fingerprint]
    assert isinstance(engine, Server)
    store.optimise()
    assert not upkeep._sealed(engine, collection)  # so few are left alone
    monkeypatch.setattr(upkeep, "SEAL_FROM", 400)
    store.optimise()
    assert upkeep._sealed(engine, collection)
    assert gallery.search(queries, space=OLD, k=10, exact=True) == before
    gallery.delete([before[0][0].id])
    assert gallery.search(queries, space=OLD, k=9, exact=True)[0] == before[0][1:]
    gallery.add(embed(["late"]))  # beside the closed ones
    assert gallery.search(embed(["late"]), k=1, exact=True)[0][0].id == "late"
    assert store.check() == []


@on_server
def test_the_server_takes_every_kind_of_index(
    milvus: Milvus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its settings, as the store would make it. The wheel's server cannot build DISKANN:
    it takes it, and builds nothing."""
    rows = unit(np.random.default_rng(0), upkeep.SMALL + 100)
    made: dict[str, Server] = {}
    for kind in KINDS:
        engine = Server(
            f"{milvus.location('kinds')}?index={kind}&nlist=8"
            if "IVF" in kind
            else f"{milvus.location('kinds')}?index={kind}"
        )
        index = upkeep._index_of(engine, OLD)
        schema.make_vectors(engine, f"kind_{kind.lower()}", OLD, index)
        made[kind] = engine
    for kind, engine in made.items():
        collection = f"kind_{kind.lower()}"
        schema.wait_until_loaded(engine, collection)
        points = [{"pk": n, "row": n, "vector": row} for n, row in enumerate(rows)]
        engine.insert_vectors(collection, points, metric="cosine", beat=lambda: None)
        sought = Sought(
            vectors=list(rows[:5]),
            where=[],
            metric="cosine",
            limit=3,
            index=upkeep._index_of(engine, OLD),
            exact=False,
            time=engine.now(),
        )
        found = engine.search(collection, sought)
        assert [hits[0]["pk"] for hits in found] == [0, 1, 2, 3, 4], kind
        if kind == "DISKANN":
            monkeypatch.setattr(upkeep, "INDEX_SECONDS", 1.0)
            with pytest.raises(StoreError, match="built nothing of the index DISKANN"):
                upkeep._wait_for_index(engine, collection)
        engine.drop(collection)
        engine.close()


@on_server
def test_a_server_that_dies_loses_nothing_that_was_acknowledged(
    mortal: Milvus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MilvusStore.create(mortal.location("shop"), OLD, entry=entry("create"))
    model = MemoryStore.create("memory:", OLD, entry=entry("create"))
    seed, number = 5, 0
    delay = threading.Timer(random.Random(3).uniform(1.0, 2.0), mortal.kill)
    delay.start()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "SECONDS", 3.0)
        while True:
            try:
                step(store, seed, number)
            except StoreError as error:
                assert "cannot be reached or broke off" in str(error)  # noqa: PT017 (a loop)
                break
            step(model, seed, number)
            number += 1
        delay.join()
        mortal.start()
        wait_for(store)
    seen = picture(store)
    if seen != picture(model):  # the step that was under way may have been done
        step(model, seed, number)
        number += 1
        assert seen == picture(model)
    same_search(store, model)
    step(store, seed, number)
    step(model, seed, number)
    assert picture(store) == picture(model)
    store.close()


def wait_for(store: MilvusStore) -> None:
    """After a restart the server loads its collections again."""
    deadline = time.time() + 240
    while True:
        try:
            store.count()
            return
        except StoreError:
            if time.time() > deadline:
                raise
            time.sleep(0.2)


@on_server
def test_a_gallery_is_made_once(place: str) -> None:
    made: list[MilvusStore] = []
    refused: list[str] = []

    def create() -> None:
        try:
            made.append(MilvusStore.create(place, OLD, entry=entry("create")))
        except GalleryError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 2)
    assert all("already" in line for line in refused)
    prefix = split_location(place).name
    left = [name for name in made[0]._engine.collections() if name.startswith(f"{prefix}__")]
    assert len(left) == 3  # of the others nothing is left
    start(made[0], to=NEW)
    assert MilvusStore.open(place).state().live == (NEW.fingerprint, OLD.fingerprint)
    made[0].close()
