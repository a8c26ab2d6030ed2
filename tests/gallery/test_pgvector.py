"""What is PostgreSQL's own: locations, the HNSW index, a server that dies."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psycopg
import pytest

from midspan.errors import GalleryError, StoreError
from midspan.gallery import Gallery
from midspan.gallery.filters import Eq, Range
from midspan.gallery.items import Draft
from midspan.gallery.records import Failed, Query
from midspan.gallery.stores.memory import MemoryStore
from midspan.gallery.stores.pgvector import schema
from midspan.gallery.stores.pgvector.place import hide_password, split_location
from midspan.gallery.stores.pgvector.rows import read_state
from midspan.gallery.stores.pgvector.search import _statement
from midspan.gallery.stores.pgvector.store import PgvectorStore
from midspan.spaces import Embeddings
from tests.gallery.postgres import Postgres
from tests.gallery.samples import DIM, NEW, OLD, add, embed, entry, near, start, unit
from tests.gallery.script import picture, same_search, step


@pytest.fixture
def store(postgres: Postgres, request: pytest.FixtureRequest) -> Iterator[PgvectorStore]:
    name = f"t{abs(hash(request.node.name)) % 10**9}"
    made = PgvectorStore.create(postgres.location(name), OLD, entry=entry("create"))
    yield made
    made.close()


def test_a_location_names_server_and_table() -> None:
    place = split_location("postgresql://me:pw@db:5433/shop?sslmode=require&table=photos")
    assert (place.url, place.table, place.partitions, place.half) == (
        "postgresql://me:pw@db:5433/shop?sslmode=require",
        "photos",
        0,
        False,
    )
    place = split_location("postgresql:///shop?table=a&partitions=16&index=halfvec")
    assert (place.partitions, place.half) == (16, True)
    assert place.settings == {"partitions": "16", "index": "halfvec"}
    for bad, message in (
        ("partitions=2000", "wanted 0 to 1024"),
        ("partitions=1.5", "wanted a whole number"),
        ("index=ivf", "wanted vector or halfvec"),
        ("table=b", "table is given twice"),
    ):
        with pytest.raises(GalleryError, match=message):
            split_location(f"postgresql:///shop?table=a&{bad}")
    for bad in ("", "table=", "table=Shop", "table=a%22b", "table=1a", "table=" + "a" * 41):
        with pytest.raises(GalleryError, match=r"wanted …\?table=NAME"):
            split_location(f"postgresql://me@db/shop?{bad}")


def test_passwords_are_not_shown() -> None:
    shown = hide_password("postgresql://me:secret@db/shop?table=a&password=secret")
    assert "secret" not in shown
    assert shown.startswith("postgresql://me@db/shop?table=a")
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        Gallery.open("postgresql://me:secret@127.0.0.1:1/shop?table=a")
    assert "secret" not in str(caught.value)


@pytest.mark.server
@pytest.mark.slow
def test_hnsw_is_built_when_it_pays_and_finds_the_neighbours(
    store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "INDEX_FROM", 500)
    rng = np.random.default_rng(0)
    ids = [f"i{number:05}" for number in range(3000)]
    gallery = Gallery(store)
    store.optimise()
    assert indexes(store) == []  # an empty table needs none
    gallery.add(
        Embeddings(ids=np.array(ids), vectors=unit(rng, 3000), space=OLD),
        payloads=[{"n": number % 100} for number in range(3000)],
    )
    store.optimise()
    assert len(indexes(store)) == 1
    store.optimise()  # again does no harm
    queries = unit(np.random.default_rng(1), 50)
    prefer_indexes(store, monkeypatch)
    assert "hnsw" in plan(store)
    for condition in (None, Range("n", lt=50), Eq("n", 7)):
        rough = gallery.search(queries, space=OLD, k=10, filter=condition)
        exact = gallery.search(queries, space=OLD, k=10, filter=condition, exact=True)
        shares = [
            len({hit.id for hit in one} & {hit.id for hit in other}) / 10
            for one, other in zip(rough, exact, strict=True)
        ]
        assert np.mean(shares) >= 0.95
    start(store)
    store.fill(embed(ids[:1000], NEW), revisions=[1] * 1000)
    store.optimise()
    assert len(indexes(store)) == 2
    for hits in gallery.search(queries, space=NEW, k=50):
        assert len({hit.id for hit in hits}) == 50


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("index", ["vector", "halfvec"])
def test_a_gallery_in_partitions_answers_like_one_in_memory(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, index: str
) -> None:
    location = f"{postgres.location(f'parts_{index}')}&partitions=4&index={index}"
    PgvectorStore.create(location, OLD, entry=entry("create")).close()
    with pytest.raises(GalleryError, match="made with partitions=4"):
        PgvectorStore.open(location.replace("partitions=4", "partitions=8"))
    store = PgvectorStore.open(postgres.location(f"parts_{index}"))  # it knows how it was made
    model = MemoryStore.create("memory:", OLD, entry=entry("create"))
    for number in range(40):
        for one in (store, model):
            step(one, 7, number)
    assert picture(store) == picture(model)
    same_search(store, model)
    monkeypatch.setattr(schema, "INDEX_FROM", 100)
    gallery = Gallery(store)
    space, rng = gallery.space, np.random.default_rng(0)
    ids = [f"x{number:05}" for number in range(1200)]
    gallery.add(Embeddings(ids=np.array(ids), vectors=unit(rng, 1200), space=space))
    store.optimise()
    assert len([name for name in indexes(store) if name.rpartition("_")[2] in "0123"]) >= 4
    assert store.check() == []
    prefer_indexes(store, monkeypatch)
    queries = unit(rng, 30)
    assert "hnsw" in plan_of(store, near(store, queries[:1]))
    rough = gallery.search(queries, space=space, k=10)
    exact = gallery.search(queries, space=space, k=10, exact=True)
    shares = [
        len({hit.id for hit in one} & {hit.id for hit in other}) / 10
        for one, other in zip(rough, exact, strict=True)
    ]
    assert np.mean(shares) >= 0.97
    store.close()


@pytest.mark.server
@pytest.mark.slow
def test_a_page_of_a_scan_reads_a_page(
    store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"i{number:05}" for number in range(3000)]
    Gallery(store).add(
        Embeddings(ids=np.array(ids), vectors=unit(np.random.default_rng(0), 3000), space=OLD)
    )
    start(store)
    store.fill(embed(ids[:500], NEW), revisions=[1] * 500)
    store.fail([Failed(id, 1, "x") for id in ids[600:900]], retry_after=None)
    store.optimise()
    with store._server.asking() as connection:
        connection.execute(store._server.sql("ANALYZE {work}"))
    seen: list[tuple[bytes, Any]] = []
    execute = psycopg.Connection.execute

    def spy(self: Any, query: Any, params: Any = None, **settings: Any) -> Any:
        seen.append((query, params))
        return execute(self, query, params, **settings)

    monkeypatch.setattr(psycopg.Connection, "execute", spy)
    store.scan(filter=None, missing=None, after=ids[1000], limit=20)
    store.scan(filter=None, missing=NEW.fingerprint, after=ids[700], limit=20)
    store.failures(after=ids[700], limit=3)
    statements = [(query, params) for query, params in seen if "id LIMIT" in str(query)]
    table = store._server.table
    indexes = [f"{table}_items_id_key", f"{table}_items_id_key", f"{table}_work_id_idx"]
    for index, (query, params) in zip(indexes, statements, strict=True):
        with store._server.asking() as connection:
            plan = execute(connection, b"EXPLAIN ANALYZE " + query, params).fetchall()
        text = "\n".join(str(line) for (line,) in plan)
        assert index in text
        assert "Sort" not in text.partition("Limit")[2], text  # a page may be, not what it is of
        assert f"Seq Scan on {table}_items" not in text, text
        assert f"Seq Scan on {table}_work" not in text, text


def prefer_indexes(store: PgvectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """For 3,000 rows PostgreSQL would rather read them all."""
    connect = store._server.connect

    def connect_and_set() -> psycopg.Connection[tuple[object, ...]]:
        connection = connect()
        connection.execute("SET enable_seqscan = off")
        return connection

    monkeypatch.setattr(store._server, "connect", connect_and_set)
    store._server._forget_idle()


def indexes(store: PgvectorStore) -> list[str]:
    with store._server.asking() as connection:
        rows = connection.execute(
            "SELECT indexname FROM pg_indexes WHERE starts_with(indexname, %s)",
            (f"{store._server.table}_hnsw",),
        )
        return [name for (name,) in rows]


def plan_of(store: PgvectorStore, query: Query) -> str:
    """What PostgreSQL would do for the first vector."""
    server, (vector,) = store._server, query.vectors
    with server.asking() as connection:
        _, numbers = read_state(connection, server)
        statement, values = _statement(
            server, vector, query, metric="cosine", numbers=numbers, fetch=20
        )
        lines = connection.execute(b"EXPLAIN " + statement, values).fetchall()
    return "\n".join(line for (line,) in lines)


def plan(store: PgvectorStore) -> str:
    with store._server.asking() as connection:
        rows = connection.execute(
            store._server.sql(
                "EXPLAIN SELECT item FROM {v} AS v ORDER BY v.vector <=> %s LIMIT 10",
                v=store._server.vectors(1),
            ),
            (np.ones(DIM, dtype=np.float32),),
        )
        return "\n".join(line for (line,) in rows)


@pytest.mark.server
@pytest.mark.slow
def test_an_index_that_was_left_half_built_is_found_and_built_again(
    store: PgvectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "INDEX_FROM", 10)
    add(store, [f"i{number}" for number in range(50)])
    store.optimise()
    with store._server.asking() as connection:
        connection.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass",
            (f"{store._server.table}_hnsw_1",),
        )
    assert "is not complete: optimise the gallery" in store.check()[0]
    store.optimise()
    assert store.check() == []


@pytest.mark.server
@pytest.mark.slow
def test_a_server_that_dies_loses_nothing_that_was_acknowledged(
    store: PgvectorStore, postgres: Postgres
) -> None:
    model = MemoryStore.create("memory:", OLD, entry=entry("create"))
    chance, seed, number = random.Random(3), 5, 0
    for _ in range(3):
        delay = threading.Timer(chance.random() * 0.5, postgres.kill)
        delay.start()
        number = until_it_dies(store, model, seed, number)
        delay.join()
        postgres.start()
        found = picture(store)
        if found != picture(model):  # the step that was under way may have been done
            step(model, seed, number)
            number += 1
            assert found == picture(model)
        same_search(store, model)
    assert number > 10


def until_it_dies(store: PgvectorStore, model: MemoryStore, seed: int, number: int) -> int:
    deadline = time.time() + 30
    while time.time() < deadline:
        try:
            step(store, seed, number)
        except StoreError as error:
            if "cannot be reached or broke off" not in str(error):
                raise
            return number
        step(model, seed, number)
        number += 1
    raise AssertionError("the server did not die")


@pytest.mark.server
@pytest.mark.slow
def test_a_server_without_pgvector_or_gallery_is_a_clear_error(postgres: Postgres) -> None:
    with pytest.raises(GalleryError, match="there is no gallery at"):
        Gallery.open(postgres.location("nothing_here"))
    with pytest.raises(StoreError, match='database "nowhere" does not exist'):
        Gallery.open(postgres.location("x").replace("/postgres?", "/nowhere?"))


@pytest.mark.server
@pytest.mark.slow
def test_two_writers_of_one_new_id_do_not_fail(store: PgvectorStore) -> None:
    failures: list[Exception] = []

    def write(seed: int) -> None:
        try:
            for number in range(15):
                draft = Draft(f"i{number}", payload={"seed": seed})
                store.upsert([draft], [embed([draft.id], seed=seed)], mode="put")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    items = store.get([f"i{number}" for number in range(15)])
    assert [item.revision for item in items] == [4] * 15
    for item in items:
        seed = item.payload["seed"]
        hits = store.search(near(store, embed([item.id], seed=seed).vectors, k=1))[0]
        assert (hits[0].id, hits[0].payload) == (item.id, {"seed": seed})


@pytest.mark.server
@pytest.mark.slow
def test_idle_connections_that_died_are_replaced(
    store: PgvectorStore, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, ["a"])
    monkeypatch.setattr("midspan.gallery.stores.pgvector.server.IDLE", 0.0)
    with psycopg.connect(postgres.url(), autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )
    time.sleep(0.1)
    assert store.get(["a"])[0].id == "a"


@pytest.mark.server
@pytest.mark.slow
def test_a_reader_that_meets_the_drop_of_a_space_reads_again(store: PgvectorStore) -> None:
    """Each waits for what the other holds, and PostgreSQL ends the reader."""
    ids = ["a", "b"]
    add(store, ids)
    server = store._server
    with server.asking() as connection:
        (number,) = read_state(connection, server)[1].values()
    seen: list[list[str]] = []
    with psycopg.connect(server.place.url) as dropping, psycopg.connect(server.place.url) as look:
        look.autocommit = True
        dropping.execute("SET deadlock_timeout = '60s'")  # not this one
        dropping.execute(f"LOCK TABLE {server.vectors(number)} IN ACCESS EXCLUSIVE MODE".encode())
        reader = threading.Thread(target=lambda: seen.append([item.id for item in store.get(ids)]))
        reader.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
        until = time.monotonic() + 60
        while look.execute(waiting, (server.vectors(number),)).fetchone() != (1,):
            assert time.monotonic() < until
            time.sleep(0.01)
        dropping.execute(server.sql("LOCK TABLE {items} IN ACCESS EXCLUSIVE MODE"))
        assert seen == []
        dropping.rollback()
        reader.join(60)
    assert seen == [ids]
