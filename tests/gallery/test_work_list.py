"""The work list in memory against a slow one that sorts everything at each claim; and that claims
in a gallery file and in PostgreSQL go by the index.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from midspan.gallery import Failed, Gallery, Task
from midspan.gallery.stores.pgvector.store import PgvectorStore
from midspan.gallery.stores.pgvector.work import NEXT
from midspan.gallery.stores.sqlite import work
from midspan.gallery.stores.sqlite.store import SqliteStore
from midspan.gallery.stores.work_list import WorkList
from midspan.spaces import Embeddings, Space
from midspan.upgrade import Upgrade
from tests.gallery.postgres import Postgres

OLD = Space("old", 4, fingerprint="f-old")
NEW = Space("new", 4, fingerprint="f-new", compatible_with=("f-old",))


@dataclass
class Slow:
    number: int
    priority: float = 0.0
    due: float = 0.0
    worker: str | None = None


@pytest.mark.parametrize("seed", range(5))
def test_claims_are_those_of_a_full_sort(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng, now = random.Random(seed), 1000.0
    monkeypatch.setattr("midspan.gallery.stores.work_list.time.time", lambda: now)
    fast, slow = WorkList(), dict[str, Slow]()
    ids = [f"i{number}" for number in range(60)]
    for _ in range(600):
        now += rng.choice([0.0, 0.0, 0.5, 3.0])
        id = rng.choice(ids)
        step = rng.randrange(7)
        if step == 0:
            fast.add(id, ids.index(id))
            slow[id] = Slow(ids.index(id))
        elif step == 1:
            fast.remove(id)
            slow.pop(id, None)
        elif step == 2:
            priority = float(rng.randrange(4))
            fast.prioritise([(id, priority)])
            if id in slow:
                slow[id].priority = priority
        elif step == 3:
            after = rng.choice([None, 0.0, 2.0])
            fast.fail(id, "why", after)
            if id in slow:
                slow[id].due = float("inf") if after is None else now + after
                slow[id].worker = None
        elif step == 4:
            assert fast.release("w") == sum(task.worker == "w" for task in slow.values())
            for task in slow.values():
                if task.worker == "w":
                    task.due, task.worker = 0.0, None
        elif step == 5 and rng.random() < 0.2:
            fast.retry()
            for task in slow.values():
                task.due = 0.0 if task.due == float("inf") else task.due
        else:
            limit, seconds = rng.randrange(1, 9), rng.choice([0.0, 1.0, 5.0])
            due = [one for one in slow if slow[one].due <= now]
            due.sort(key=lambda one: (-slow[one].priority, slow[one].number))
            assert [one for one, _ in fast.claim("w", limit, seconds)] == due[:limit]
            for one in due[:limit]:
                slow[one].due, slow[one].worker = now + seconds, "w"


WORK_OF_BEFORE = """
CREATE TABLE former AS SELECT * FROM work;
DROP TABLE work;
CREATE TABLE work (
    item INTEGER PRIMARY KEY REFERENCES items ON DELETE CASCADE,
    priority REAL NOT NULL DEFAULT 0,
    due REAL NOT NULL DEFAULT 0,
    worker TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '',
    moment REAL NOT NULL DEFAULT 0
);
CREATE INDEX work_order ON work (priority DESC, item) WHERE failed = 0;
CREATE INDEX work_failed ON work (item) WHERE failed = 1;
CREATE INDEX work_worker ON work (worker) WHERE worker IS NOT NULL;
INSERT INTO work SELECT * FROM former;
DROP TABLE former;
"""


def work_through(gallery: Gallery) -> list[list[tuple[str, int]]]:
    """Claims, failures, retries and fills of a small gallery; what each claim gave."""
    store, given = gallery.store, list[list[tuple[str, int]]]()

    def claim(worker: str, limit: int) -> list[Task]:
        tasks = store.claim(worker=worker, limit=limit, seconds=60.0)
        assert all(task.item.spaces == ("f-old",) for task in tasks)
        given.append([(task.item.id, task.attempts) for task in tasks])
        return tasks

    def fill(tasks: list[Task]) -> int:
        ids = np.array([task.item.id for task in tasks])
        rows = np.random.default_rng(1).standard_normal((len(ids), 4)).astype(np.float32)
        return store.fill(Embeddings(ids, rows, NEW), revisions=[1] * len(ids))

    first = claim("a", 7)
    claim("b", 5)
    assert fill(first[2:]) == 5
    assert fill(first[2:]) == 0
    store.fail([Failed(first[0].item.id, 1, "no image")], retry_after=None)
    store.fail([Failed(first[1].item.id, 1, "slow")], retry_after=0.0)
    assert store.release("b") == 5
    assert [failure.id for failure in store.failures(after="", limit=9)] == [first[0].item.id]
    store.delete(["i03"])
    claim("c", 4)
    assert (store.count().pending, store.count().failed) == (13, 1)
    assert store.retry() == 1
    assert fill(claim("c", 99)) == 10
    assert store.release("c") == 4
    assert fill(claim("a", 99)) == 4
    assert store.count().pending == 0
    return given


def test_the_work_list_of_a_former_file_goes_on(tmp_path: Path) -> None:
    given = []
    for name in ("now", "before"):
        with Gallery.create(str(tmp_path / name), OLD) as gallery:
            rows = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
            ids = np.array([f"i{number:02}" for number in range(20)])
            gallery.add(Embeddings(ids, rows, OLD))
            Upgrade.start(gallery, to=NEW, order="random")
            gallery.store.prioritise(ids.tolist(), [float(number * 7 % 20) for number in range(20)])
            if name == "before":
                assert isinstance(gallery.store, SqliteStore)
                with gallery.store._database.writing() as connection:
                    for statement in WORK_OF_BEFORE.split(";"):
                        connection.execute(statement)
            given.append(work_through(gallery))
    assert given[0] == given[1]
    assert given[0][0] == [(f"i{number * 3 % 20:02}", 0) for number in range(19, 12, -1)]


def test_a_claim_in_a_file_reads_the_index_in_its_order(tmp_path: Path) -> None:
    with Gallery.create(str(tmp_path / "shop.midspan"), OLD) as gallery:
        rows = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
        gallery.add(Embeddings(np.array([f"i{n}" for n in range(50)]), rows, OLD))
        assert isinstance(gallery.store, SqliteStore)
        with gallery.store._database.reading() as connection:
            asked: list[str] = []
            connection.set_trace_callback(asked.append)
            work.claim(connection, "w", 10, 60.0)
            connection.set_trace_callback(None)
            (claim,) = [one for one in asked if "ORDER BY priority" in one]
            plan = " ".join(
                str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {claim}")
            )
    assert "USING PRIMARY KEY (failed=?)" in plan
    assert "B-TREE" not in plan, "nothing is sorted"


@pytest.mark.server
def test_a_claim_in_postgresql_reads_the_index_in_its_order(postgres: Postgres) -> None:
    rng = np.random.default_rng(0)
    with Gallery.create(postgres.location("worklist"), OLD) as gallery:
        ids = np.array([f"i{number:05}" for number in range(4000)])
        gallery.add(Embeddings(ids, rng.standard_normal((4000, 4)).astype(np.float32), OLD))
        Upgrade.start(gallery, to=NEW, order="random")
        gallery.store.claim(worker="w", limit=100, seconds=60)
        assert isinstance(gallery.store, PgvectorStore)
        server = gallery.store._server
        with server.asking() as connection:
            lines = connection.execute(server.sql(f"EXPLAIN {NEXT}"), (64,)).fetchall()
    plan = "\n".join(line for (line,) in lines)
    assert "Index Scan using worklist_work_priority_item_idx" in plan
    assert "Sort" not in plan
