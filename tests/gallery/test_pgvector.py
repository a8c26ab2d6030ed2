"""What is PostgreSQL's own: the HNSW index, filters on it, drops, poolers, a server that dies."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
import pytest

from midspan.errors import GalleryError, StateChanged, StoreError
from midspan.gallery import Gallery
from midspan.gallery.catalogue import postgresql
from midspan.gallery.engines import (
    pgvector,
    pgvector_index,
    pgvector_search,
)
from midspan.gallery.engines.base import SearchRequest
from midspan.gallery.engines.pgvector import PgvectorEngine
from midspan.gallery.filters import Eq, Filter, Range
from midspan.spaces import Embeddings, FloatArray, IntArray, Space
from tests.gallery.postgres import Postgres
from tests.gallery.samples import DIM, NEW, OLD, add, embed, found, start, unit, view
from tests.gallery.script import picture, same_search, step

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture
def small_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small spaces have an index too."""
    monkeypatch.setattr(pgvector_index, "INDEX_FROM", 50)


MANY = 22_000  # more than HNSW looks at by default (hnsw.max_scan_tuples = 20,000)
QUERIES = unit(np.random.default_rng(1), 10)


def new_gallery(postgres: Postgres, settings: str = "", space: Space = OLD) -> Gallery:
    location = postgres.location("t" + uuid.uuid4().hex[:10])
    return Gallery.create(location + settings, space, who="tester")


@pytest.fixture
def gallery(postgres: Postgres) -> Iterator[Gallery]:
    with new_gallery(postgres) as made:
        yield made


def engine_of(gallery: Gallery) -> PgvectorEngine:
    engine = gallery._session.engine
    assert isinstance(engine, PgvectorEngine)
    return engine


def ask(gallery: Gallery, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    return gallery._session.catalogue.ask(statement, values)


def table_of(gallery: Gallery) -> str:
    return gallery._session.catalogue.tables.prefix.rstrip("_")


def fill(gallery: Gallery, count: int, *, rare: int = 100) -> list[str]:
    """Items with random vectors; every `rare`-th has the brand 'rare'."""
    ids = [f"i{number:06}" for number in range(count)]
    vectors = unit(np.random.default_rng(0), count, gallery.space.dim)
    gallery.add(
        Embeddings(ids=np.array(ids), vectors=vectors, space=gallery.space),
        payloads=[
            {"n": number, "brand": "common" if number % rare else "rare"} for number in range(count)
        ],
    )
    return ids


def backfill(gallery: Gallery, ids: list[str]) -> None:
    vectors = unit(np.random.default_rng(2), len(ids))
    for first in range(0, len(ids), 5000):
        part = ids[first : first + 5000]
        batch = Embeddings(ids=np.array(part), vectors=vectors[first : first + 5000], space=NEW)
        gallery.add_missing_vectors(batch, revisions=[1] * len(part))


def recall(gallery: Gallery, queries: FloatArray, **settings: Any) -> float:
    rough = view(gallery, queries, **settings)
    exact = view(gallery, queries, exact=True, **settings)
    assert [len(hits) for hits in rough] == [len(hits) for hits in exact]
    pairs = zip(found(rough), found(exact), strict=True)
    return float(np.mean([len(set(one) & set(other)) / len(other) for one, other in pairs]))


def plans(gallery: Gallery, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[str]:
    """How PostgreSQL answers each statement of a search, by EXPLAIN."""
    seen: list[str] = []
    database: Any = gallery._session.catalogue.database
    together = database.ask_together

    def explain(settings: str, asked: Any) -> Any:
        plans = together(settings, [(f"EXPLAIN {text}", values) for text, values in asked])
        seen.extend("\n".join(line for (line,) in lines) for lines in plans)
        return together(settings, asked)

    with monkeypatch.context() as patch:
        patch.setattr(database, "ask_together", explain)
        view(gallery, QUERIES[:1], **settings)
    return seen


# ---- filters and superseded rows, above what HNSW looks at by itself ---------------------------


def test_pgvector_rare_filter_in_a_large_space_finds_all(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_gallery(postgres) as gallery:
        ids = fill(gallery, MANY, rare=1000)
        engine = engine_of(gallery)
        assert engine.needs_index(1)
        gallery.optimise()
        assert not engine.needs_index(1)
        status = engine.index_status(1)
        assert (status.rows, status.kind, status.state, status.unindexed) == (
            MANY, "hnsw", "ready", 0
        )  # fmt: skip
        assert "hnsw" in plans(gallery, monkeypatch)[0]
        assert recall(gallery, QUERIES) >= 0.95
        rare: list[Filter] = [Eq("brand", "rare"), Range("n", lt=12), Eq("n", 77)]
        for condition, count in zip(rare, (10, 10, 1), strict=True):
            hits = view(gallery, QUERIES, filter=condition)
            assert [len(one) for one in hits] == [count] * len(QUERIES)
            assert hits == view(gallery, QUERIES, filter=condition, exact=True)
        monkeypatch.setattr(pgvector_search, "SCAN_ROWS", 1)  # HNSW ends early: the exact pass
        assert recall(gallery, QUERIES, filter=Eq("brand", "rare")) == 1.0
        monkeypatch.undo()

        start(gallery)
        backfill(gallery, ids[: MANY // 2])
        assert recall(gallery, QUERIES) >= 0.95  # half way; one index of two
        (text,) = plans(gallery, monkeypatch)  # one message; superseded rows go after the scan
        nearest = text.partition("CTE near1")[2].partition("CTE near2")[0].partition("Anti Join")
        assert "Index Scan using" in nearest[0], text
        assert "Limit" in nearest[0], text
        assert nearest[1], text
        old = (NEW.fingerprint, OLD.fingerprint)
        monkeypatch.setattr(pgvector_index, "LOOK_SECONDS", 0.0)
        backfill(gallery, ids[MANY // 2 : -8])
        gallery.optimise()
        assert engine.index_status(2).state == "ready"
        for few in (0, 5000):  # without and with the list of what is left
            monkeypatch.setattr(pgvector_index, "FEW", few)
            hits = view(gallery, QUERIES, live=old, among=old[1:], k=10)
            assert [sorted(one) for one in found(hits)] == [ids[-8:]] * len(QUERIES)
            assert hits == view(gallery, QUERIES, live=old, among=old[1:], k=10, exact=True)
        backwards = tuple(reversed(old))  # what a client of the old encoder sees
        for live, among in ((old, old[1:]), (backwards, backwards[1:])):
            text = plans(gallery, monkeypatch, live=live, among=among)[0]
            assert f"Seq Scan on {table_of(gallery)}_vectors" not in text, text
            assert "hnsw" not in text
        assert found(view(gallery, QUERIES, live=backwards, among=backwards[1:])) == [[]] * 10
        gallery.add(embed(["late"], NEW))
        hits = view(gallery, QUERIES[:1], live=backwards, among=backwards[1:])
        assert found(hits) == [["late"]]
        assert recall(gallery, QUERIES) >= 0.95
        rolled_back = view(gallery, QUERIES, live=old[1:])  # as if nothing had superseded them
        assert all(len(hits) == 10 for hits in rolled_back)


def test_pgvector_payload_index_serves_filters(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(gallery, 5000, rare=500)
    for field in ("brand", "n"):
        gallery.index_payload(field)
    names = ask(
        gallery,
        "SELECT indexname FROM pg_indexes WHERE starts_with(indexname, %s)",
        f"{table_of(gallery)}_p",
    )
    for condition in (Eq("brand", "rare"), Range("n", gte=10, lt=20)):
        text = plans(gallery, monkeypatch, filter=condition)[0]
        assert any(name in text for (name,) in names), text
        assert recall(gallery, QUERIES, filter=condition) == 1.0


@pytest.mark.parametrize(
    "settings", ["&index=halfvec", "&partitions=3", "&partitions=2&index=halfvec"]
)
@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_pgvector_partitioned_or_half_precision_index_finds_the_neighbours(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, settings: str, metric: Any
) -> None:
    monkeypatch.setattr(pgvector_index, "INDEX_FROM", 1000)
    space = Space(name="s", dim=DIM, metric=metric, fingerprint="f-s")
    with new_gallery(postgres, settings, space) as gallery:
        fill(gallery, 1500)
        gallery.optimise()
        status = engine_of(gallery).index_status(1)
        assert (status.rows, status.state, status.unindexed) == (1500, "ready", 0)
        more = unit(np.random.default_rng(5), 20)
        ids = np.array([f"x{number}" for number in range(20)])
        gallery.add(Embeddings(ids=ids, vectors=more, space=space))  # into the index
        assert set(ids.tolist()) <= {hit.id for hits in view(gallery, more) for hit in hits}
        assert recall(gallery, QUERIES) >= 0.95
        assert recall(gallery, QUERIES, filter=Eq("brand", "rare")) == 1.0
        location = f"{postgres.location(table_of(gallery))}"
    with Gallery.open(location) as again:  # it knows how it was made
        assert engine_of(again).index_status(1).state == "ready"
    with pytest.raises(GalleryError, match="made with"):
        Gallery.open(f"{location}&partitions=7")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("partitions=2000", "expected 0 to 1024"),
        ("partitions=1.5", "expected a whole number"),
        ("index=ivf", "expected vector or halfvec"),
        ("colour=red", "unknown setting 'colour'"),
    ],
)
def test_pgvector_invalid_settings_raise(postgres: Postgres, bad: str, message: str) -> None:
    with pytest.raises(GalleryError, match=message):
        new_gallery(postgres, f"&{bad}")


# ---- building ----------------------------------------------------------------------------------


def test_pgvector_two_builders_during_writes_build_one_index(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector_index, "INDEX_FROM", 1000)
    fill(gallery, 3000)
    engine, failures = engine_of(gallery), list[Exception]()

    def build() -> None:
        try:
            engine.build_index(1)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    written = 0
    while any(thread.is_alive() for thread in threads):
        add(gallery, [f"during{written}"])
        assert view(gallery, QUERIES[:1])
        written += 1
    assert failures == []
    assert written > 0
    assert indexes(gallery) == [(f"{table_of(gallery)}_hnsw_1", True)]
    assert engine.index_status(1).unindexed == 0
    assert recall(gallery, QUERIES) >= 0.95


def indexes(gallery: Gallery) -> list[tuple[Any, ...]]:
    return ask(
        gallery,
        "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
        "WHERE starts_with(c.relname, %s)",
        f"{table_of(gallery)}_hnsw",
    )


@pytest.mark.usefixtures("small_index")
def test_pgvector_invalid_index_is_built_again(gallery: Gallery) -> None:
    fill(gallery, 200)
    gallery._session.maintenance.close()  # it would build the index at its next look
    engine = engine_of(gallery)
    engine.build_index(1)
    with gallery._session.catalogue.writing() as connection:
        connection.exec_driver_sql(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass",
            (f"{table_of(gallery)}_hnsw_1",),
        )
    status = engine.index_status(1)
    assert (status.state, status.unindexed) == ("failed", 200)
    assert status.failure is not None
    assert "interrupted" in status.failure
    assert engine.needs_index(1)
    engine.build_index(1)
    assert engine.index_status(1).state == "ready"


@pytest.mark.usefixtures("small_index")
def test_pgvector_failed_build_is_reported_and_succeeds_later(gallery: Gallery) -> None:
    fill(gallery, 100)
    gallery._session.maintenance.close()  # it would build the index at its next look
    engine, name = engine_of(gallery), f"{table_of(gallery)}_hnsw_1"
    with gallery._session.catalogue.writing() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {name} (x int)")
    with pytest.raises(StoreError, match="already exists"):
        engine.build_index(1)
    assert engine.index_status(1).state == "none"
    with gallery._session.catalogue.writing() as connection:
        connection.exec_driver_sql(f"DROP TABLE {name}")
    engine.build_index(1)
    assert engine.index_status(1).state == "ready"


@pytest.mark.usefixtures("small_index")
def test_pgvector_little_shared_memory_builds_in_one_process(
    postgres: Postgres, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(gallery, ["a"])
    builder, connect = engine_of(gallery)._builder, engine_of(gallery)._builder._connect
    tried: list[dict[str, str]] = []

    @contextmanager
    def little(settings: dict[str, str], *, autocommit: bool = True) -> Iterator[Any]:
        with gallery._session.catalogue.errors():
            if "maintenance_work_mem" in settings:
                tried.append(settings)
                if settings.get("max_parallel_maintenance_workers") != "0":
                    raise psycopg.errors.DiskFull("could not resize shared memory segment")
            with connect(settings, autocommit=autocommit) as connection:
                yield connection

    monkeypatch.setattr(builder, "_connect", little)
    fill(gallery, 100)
    gallery.optimise()
    assert len(tried) >= 2
    assert engine_of(gallery).index_status(1).state == "ready"


def test_pgvector_status_shows_a_running_build(gallery: Gallery) -> None:
    fill(gallery, 100)
    builder = engine_of(gallery)._builder
    with builder._locked(1):
        assert engine_of(gallery).index_status(1).state == "building"


def test_pgvector_dimensions_beyond_hnsw_require_no_index(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector_index, "INDEX_FROM", 10)
    for dim, needed in ((2500, True), (4500, False)):
        with new_gallery(postgres, space=Space(name="w", dim=dim)) as gallery:
            fill(gallery, 50)
            engine = engine_of(gallery)
            assert engine.needs_index(1) is needed
            gallery.optimise()
            assert engine.index_status(1).state == ("ready" if needed else "none")
            vectors = unit(np.random.default_rng(3), 2, dim)
            assert found(view(gallery, vectors)) == found(view(gallery, vectors, exact=True))


# ---- drops, readers, poolers -------------------------------------------------------------------


def test_pgvector_drop_of_a_table_in_use_raises(
    gallery: Gallery, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(gallery, 50)
    engine, table = engine_of(gallery), f"{table_of(gallery)}_vectors_1"
    monkeypatch.setattr(pgvector, "DROP_SECONDS", 0.6)
    with psycopg.connect(postgres.url()) as reader:
        reader.execute(f"SELECT count(*) FROM {table}".encode())
        with pytest.raises(StoreError, match="were in use"):
            engine.drop_space(1)
        assert len(view(gallery, QUERIES[:1])[0]) == 10  # nobody was kept from reading
        monkeypatch.setattr(pgvector, "DROP_SECONDS", 60.0)
        dropping = threading.Thread(target=lambda: engine.drop_space(1))
        dropping.start()
        reader.rollback()
        dropping.join(60)
    assert ask(gallery, "SELECT to_regclass(%s)", table) == [(None,)]
    with pytest.raises(StateChanged):
        engine.search(SearchRequest(QUERIES, 5, (1,), (1,)))


@pytest.mark.usefixtures("small_index")
def test_pgvector_drop_cancels_a_running_build(gallery: Gallery, postgres: Postgres) -> None:
    fill(gallery, 300)
    gallery._session.maintenance.close()  # it would build the index at its next look
    engine, raised = engine_of(gallery), list[Exception]()

    def build() -> None:
        try:
            engine.build_index(1)
        except GalleryError as error:
            raised.append(error)

    with psycopg.connect(postgres.url()) as writer:
        writer.execute(f'DELETE FROM {table_of(gallery)}_vectors_1 WHERE "row" = 1'.encode())
        builder = threading.Thread(target=build)
        builder.start()  # waits for the writer
        until = time.monotonic() + 60
        while not ask(gallery, "SELECT 1 FROM pg_stat_progress_create_index"):
            assert time.monotonic() < until
            time.sleep(0.01)
        dropping = threading.Thread(target=lambda: engine.drop_space(1))
        dropping.start()
        builder.join(60)
        writer.rollback()
        dropping.join(60)
    assert len(raised) == 1
    assert ask(gallery, "SELECT to_regclass(%s)", f"{table_of(gallery)}_vectors_1") == [(None,)]


def test_pgvector_search_during_a_drop_is_repeated(gallery: Gallery, postgres: Postgres) -> None:
    """Each waits for what the other holds, and PostgreSQL ends the search."""
    add(gallery, ["a", "b"])
    start(gallery)
    table, seen = table_of(gallery), list[list[str]]()
    with psycopg.connect(postgres.url()) as dropping, psycopg.connect(postgres.url()) as look:
        look.autocommit = True
        dropping.execute("SET deadlock_timeout = '60s'")  # not this one
        dropping.execute(f"LOCK TABLE {table}_vectors_1 IN ACCESS EXCLUSIVE MODE".encode())
        searching = threading.Thread(
            target=lambda: seen.extend(found(view(gallery, embed(["a"]).vectors, k=2)))
        )
        searching.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
        until = time.monotonic() + 60
        while look.execute(waiting, (f"{table}_vectors_1",)).fetchone() != (1,):
            assert time.monotonic() < until
            time.sleep(0.01)
        dropping.execute(f"LOCK TABLE {table}_vectors_2 IN ACCESS EXCLUSIVE MODE".encode())
        assert seen == []
        dropping.rollback()
        searching.join(60)
    assert seen == [["a", "b"]]


@pytest.mark.usefixtures("small_index")
def test_pgvector_settings_do_not_outlive_the_transaction(gallery: Gallery) -> None:
    """A pooler in transaction mode gives the same connection to others."""
    fill(gallery, 50)
    start(gallery)
    engine_of(gallery).build_index(1)
    view(gallery, QUERIES, filter=Eq("brand", "rare"))
    database: Any = gallery._session.catalogue.database
    pool = database._sql.pool
    assert pool.checkedin() > 0
    for _ in range(pool.checkedin()):
        left = ask(gallery, "SELECT name FROM pg_settings WHERE source = 'session'")
        assert left == []
        assert ask(gallery, "SELECT count(*) FROM pg_prepared_statements") == [(0,)]


# ---- writing -----------------------------------------------------------------------------------


def test_pgvector_put_is_transactional_and_repeatable(gallery: Gallery) -> None:
    engine = engine_of(gallery)
    rows: IntArray = np.arange(10_000, 30_000)
    vectors = unit(np.random.default_rng(4), len(rows))
    catalogue = gallery._session.catalogue
    with catalogue.writing() as connection:
        engine.put(1, rows, vectors, connection=connection)
        connection.rollback()
    assert engine.count(1) == 0
    engine.put(1, rows, vectors)
    engine.put(1, rows[:50], vectors[50:100])
    assert engine.count(1) == len(rows)
    there, got = engine.fetch(1, np.array([10_007, 3, 29_999, 10_000]))
    assert there.tolist() == [10_007, 29_999, 10_000]
    assert np.array_equal(got, vectors[[57, 19_999, 50]])
    assert engine.rows(1, after=29_996, limit=10).tolist() == [29_997, 29_998, 29_999]


def test_pgvector_older_version_raises(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgvector, "OLDEST", (99, 0))
    with pytest.raises(StoreError, match=r"expected pgvector 99\.0 or newer"):
        Gallery.open(gallery.location)


def test_pgvector_killed_server_loses_no_acknowledged_write(
    gallery: Gallery, postgres: Postgres
) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute("CHECKPOINT")  # else recovery replays what the tests before wrote
    with Gallery.create("memory:", OLD) as model:
        chance, number = random.Random(3), 0
        for _ in range(3):
            delay = threading.Timer(0.2 + chance.random() * 0.5, postgres.kill)
            number = until_it_dies(gallery, model, number, delay)
            delay.join()
            postgres.start()
            seen = picture(gallery)
            if seen != picture(model):  # the step that was under way may have been done
                step(model, 5, number)
                number += 1
                assert seen == picture(model)
            same_search(gallery, model)
        assert number > 3


def test_pgvector_first_failure_after_a_restart_clears_stale_connections(
    gallery: Gallery, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "IDLE_SECONDS", 3600.0)  # as if the restart took no time
    database = gallery._session.catalogue.database
    with database.reading(), database.reading(), database.reading():
        pass  # three connections are in the pool now
    postgres.kill()
    postgres.start()
    with pytest.raises(StoreError, match="cannot be reached or broke off"):
        ask(gallery, "SELECT 1")
    with database.reading() as one, database.reading() as two, database.reading() as three:
        assert [each.exec_driver_sql("SELECT 1").scalar() for each in (one, two, three)] == [1] * 3


def until_it_dies(gallery: Gallery, model: Gallery, number: int, kill: threading.Timer) -> int:
    """Steps until the server is killed, which the timer does some time after the second one."""
    deadline, first = time.monotonic() + 60, number
    while time.monotonic() < deadline:
        try:
            step(gallery, 5, number)
        except StoreError as error:
            if "cannot be reached or broke off" not in str(error):
                raise
            return number
        step(model, 5, number)
        number += 1
        if number == first + 2:
            kill.start()
    raise AssertionError("the server did not die")
