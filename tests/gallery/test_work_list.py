"""The work list in memory against a slow one that sorts everything at each claim; and that claims
in a gallery file and in PostgreSQL go by the index.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from midspan.gallery import Gallery
from midspan.gallery.stores.pgvector.store import PgvectorStore
from midspan.gallery.stores.pgvector.work import NEXT
from midspan.gallery.stores.sqlite import work
from midspan.gallery.stores.sqlite.store import SqliteStore
from midspan.gallery.stores.work_list import WorkList
from midspan.spaces import Embeddings, Space
from midspan.upgrade import Upgrade
from tests.gallery.postgres import Postgres


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


def test_a_claim_in_a_file_reads_the_index_in_its_order(tmp_path: Path) -> None:
    space = Space("old", 4, fingerprint="f-old")
    with Gallery.create(str(tmp_path / "shop.midspan"), space) as gallery:
        rows = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
        gallery.add(Embeddings(np.array([f"i{n}" for n in range(50)]), rows, space))
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
    assert "USING INDEX work_order" in plan
    assert "B-TREE" not in plan, "nothing is sorted"


@pytest.mark.server
def test_a_claim_in_postgresql_reads_the_index_in_its_order(postgres: Postgres) -> None:
    old = Space("old", 4, fingerprint="f-old")
    new = Space("new", 4, fingerprint="f-new", compatible_with=("f-old",))
    rng = np.random.default_rng(0)
    with Gallery.create(postgres.location("worklist"), old) as gallery:
        ids = np.array([f"i{number:05}" for number in range(4000)])
        gallery.add(Embeddings(ids, rng.standard_normal((4000, 4)).astype(np.float32), old))
        Upgrade.start(gallery, to=new, order="random")
        gallery.store.claim(worker="w", limit=100, seconds=60)
        assert isinstance(gallery.store, PgvectorStore)
        server = gallery.store._server
        with server.asking() as connection:
            lines = connection.execute(server.sql(f"EXPLAIN {NEXT}"), (64,)).fetchall()
    plan = "\n".join(line for (line,) in lines)
    assert "Index Scan using worklist_work_priority_item_idx" in plan
    assert "Sort" not in plan
