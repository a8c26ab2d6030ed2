"""The embedded engine against a plain reference, through every way that it searches."""

from __future__ import annotations

import gc
import json
import sqlite3
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import StateChanged
from midspan.gallery import Gallery
from midspan.gallery.engines.base import SearchRequest
from midspan.gallery.engines.embedded import build, segment, tables
from midspan.gallery.engines.embedded.engine import EmbeddedEngine
from midspan.gallery.filters import Eq
from tests.gallery.embedded.samples import Model, Opened, ask, clustered, listed
from tests.gallery.samples import DIM, NEW, OLD, add, embed

VIEWS = ((1,), (2, 1), (1, 2), (2,))


@pytest.fixture
def all_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes that look into every list, so that what they find is exact."""
    monkeypatch.setattr(build, "FEWEST", 10**9)
    monkeypatch.setattr(build, "OVERSAMPLING", (768.0,))
    monkeypatch.setattr(segment, "FEW", 64)


@pytest.mark.usefixtures("all_lists")
@pytest.mark.parametrize("seed", range(4))
def test_random_operations_of_two_processes_equal_the_reference(tmp_path: Path, seed: int) -> None:
    rng, model = np.random.default_rng(seed), Model()
    path = tmp_path / "shop.midspan"
    with Opened(path) as engine, Opened(path) as other:
        engine.create_space(2, NEW)
        after = 0
        for _ in range(25):
            step = rng.integers(0, 6)
            known = np.array(sorted(model.vectors[1].keys() | model.vectors[2].keys()))
            count = int(rng.integers(1, 300))
            if step <= 1 or not len(known):  # new rows
                rows = np.arange(after, after + count)
                after += count
                number = int(rng.integers(1, 3)) if step else 1
            elif step == 2:  # a backfill
                rows, number = rng.permutation(known)[:count], 2
            elif step == 3:  # the same row again
                rows, number = rng.permutation(known)[: count // 4 + 1], int(rng.integers(1, 3))
            elif step == 4:
                gone = rng.permutation(known)[:count]
                engine.delete(gone)
                model.delete(gone)
                continue
            else:
                for number in (1, 2):
                    if other.needs_index(number):
                        other.build_index(number)
                continue
            vectors = clustered(rng, len(rows))
            engine.put(number, rows, vectors)
            model.put(number, rows, vectors)
            query = clustered(rng, 1)[0]
            for live in VIEWS:
                expected = model.search(query, k=7, live=live)
                for one in (engine, other):
                    assert ask(one, query, k=7, live=live) == expected
                    assert ask(one, query, k=7, live=live, exact=True) == expected
        for one in (engine, other):
            one._background.submit(lambda: None).result()  # lists are up to date
            for live in VIEWS:
                for query in clustered(rng, 5):
                    assert ask(one, query, k=7, live=live) == model.search(query, k=7, live=live)
        for number in (1, 2):
            rows = engine.rows(number, after=-1, limit=10**6)
            assert rows.tolist() == sorted(model.vectors[number])
            assert engine.count(number) == len(model.vectors[number])
            there, vectors = engine.fetch(number, np.append(rows[::-1], 10**9))
            assert there.tolist() == rows[::-1].tolist()
            assert all(
                (model.vectors[number][row] == vector).all()
                for row, vector in zip(there.tolist(), vectors, strict=True)
            )


@pytest.mark.usefixtures("all_lists")
def test_refresh_deletions_no_longer_listed_are_found_by_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "DELETIONS_KEPT", 50)
    rng, model = np.random.default_rng(0), Model()
    path = tmp_path / "shop.midspan"
    with Opened(path) as engine, Opened(path) as other:
        vectors = clustered(rng, 500)
        engine.put(1, np.arange(500), vectors)
        model.put(1, np.arange(500), vectors)
        engine.build_index(1)
        ask(other, vectors[0])
        for start in range(0, 130, 10):
            engine.delete(np.arange(start, start + 10))
            model.delete(np.arange(start, start + 10))
        query = vectors[5]
        expected = model.search(query, k=10, live=(1,))
        assert ask(other, query) == expected  # was open before
    with Opened(path) as later:
        assert ask(later, query) == expected


def test_search_in_a_dropped_space_raises(tmp_path: Path) -> None:
    path = tmp_path / "shop.midspan"
    with Opened(path) as engine:
        engine.create_space(2, NEW)
        vectors = clustered(np.random.default_rng(0), 300)
        engine.put(2, np.arange(300), vectors)
        engine.build_index(2)
        assert len(ask(engine, vectors[0], live=(2,))) == 10
        engine.drop_space(2)
        with pytest.raises(StateChanged):
            ask(engine, vectors[0], live=(2,))
        with pytest.raises(StateChanged):
            engine.count(2)
        engine.vacuum()
        assert not list(Path(f"{path}-index").glob("2-*"))


def test_search_equal_scores_are_all_candidates(tmp_path: Path) -> None:
    with Opened(tmp_path / "shop.midspan") as engine:
        vectors = np.repeat(clustered(np.random.default_rng(0), 10), 40, axis=0)
        engine.put(1, np.arange(400), vectors)
        for _ in range(2):
            request = SearchRequest(vectors[:1], 5, (1,), (1,), exact=True)
            found = engine.search(request)[0]
            assert sorted(found.rows.tolist()) == list(range(40))
            assert not found.complete
            engine.build_index(1)


def test_search_complete_only_when_every_row_is_returned(tmp_path: Path) -> None:
    with Opened(tmp_path / "shop.midspan") as engine:
        vectors = clustered(np.random.default_rng(0), 8)
        engine.put(1, np.arange(8), vectors)
        many, few = (engine.search(SearchRequest(vectors[:1], k, (1,), (1,)))[0] for k in (8, 7))
        assert (len(many.rows), many.complete) == (8, True)
        assert (len(few.rows), few.complete) == (7, False)


def test_one_row_left_after_many_deletions_takes_the_memory_of_one(tmp_path: Path) -> None:
    def cost(path: Path, churn: int) -> int:
        with Opened(path) as engine:
            gc.collect()
            tracemalloc.start()
            for start in range(0, churn, 5000):
                rows = np.arange(start, start + 5000)
                engine.put(1, rows, clustered(np.random.default_rng(start), 5000))
                ask(engine, np.ones(DIM, dtype=np.float32))
                ask(engine, np.ones(DIM, dtype=np.float32), filter=Eq("n", 1))
                engine.delete(rows)
            engine.put(1, np.array([churn]), np.ones((1, DIM), dtype=np.float32))
            assert len(ask(engine, np.ones(DIM, dtype=np.float32))) == 1
            gc.collect()
            segment = engine._replica.known.segments[1]
            held = segment.tail._rows.nbytes + segment.tail._vectors.nbytes
            tracemalloc.stop()
            assert segment.size <= 1025
            return held

    fresh = cost(tmp_path / "fresh.midspan", 0)
    assert cost(tmp_path / "old.midspan", 30_000) <= 8 * fresh


@pytest.mark.slow
def test_rare_filter_above_twenty_thousand_rows_finds_all(tmp_path: Path) -> None:
    path, count = tmp_path / "shop.midspan", 30_000
    with Opened(path, flat_up_to=10_000 * DIM) as engine:
        rng = np.random.default_rng(0)
        vectors = clustered(rng, count)
        engine.put(1, np.arange(count), vectors)
        raw = sqlite3.connect(path)
        raw.executemany(
            'INSERT INTO items ("row", id, payload, revision, created, changed, sequence) '
            "VALUES (?, ?, ?, 1, 0, 0, 1)",
            (
                (row, f"i{row}", json.dumps({"rare": row % 300, "most": row % 10 > 0}))
                for row in range(count)
            ),
        )
        raw.execute("UPDATE gallery SET sequence = 1")
        raw.commit()
        raw.close()
        engine.build_index(1)
        model = Model()
        model.put(1, np.arange(count), vectors)
        for number, query in enumerate(clustered(rng, 3)):
            passing = set(range(number, count, 300))
            expected = model.search(query, k=10, live=(1,), passing=passing)
            assert ask(engine, query, filter=Eq("rare", number)) == expected
            few = set(range(number, count, 300))
            everything = model.search(query, k=150, live=(1,), passing=few)
            assert ask(engine, query, k=150, filter=Eq("rare", number)) == everything
            assert len(everything) == 100
            got = ask(engine, query, filter=Eq("most", True))
            true = model.search(query, k=10, live=(1,), passing={r for r in range(count) if r % 10})
            assert len(got) == 10
            assert len({row for _, row, _ in got} & {row for _, row, _ in true}) >= 8
        assert ask(engine, vectors[0], filter=Eq("rare", "none")) == []


def test_filter_follows_replacements_and_deletions(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "shop.midspan", OLD) as gallery:
        ids = [f"i{number}" for number in range(60)]
        add(gallery, ids, payloads=[{"n": number % 3} for number in range(60)])
        query = embed(["q"])
        for _ in range(2):
            hits = gallery.search(query, k=60, filter={"n": 1})[0]
            assert {hit.id for hit in hits} == {id for id in ids if int(id[1:]) % 3 == 1}
        gallery.delete(["i1"])
        gallery.set_payload({"i2": {"n": 1}, "i4": {"n": 2}})
        expected = {id for id in ids if int(id[1:]) % 3 == 1} - {"i1", "i4"} | {"i2"}
        hits = gallery.search(query, k=60, filter={"n": 1})[0]
        assert {hit.id for hit in hits} == expected
        engine = gallery._session.engine
        assert isinstance(engine, EmbeddedEngine)
        (passing,) = engine._passing._known.values()
        assert len(passing.rows) == len(expected)  # memory follows what is there


def test_search_candidates_are_sorted_by_falling_score(tmp_path: Path) -> None:
    with Opened(tmp_path / "shop.midspan") as engine:
        vectors = clustered(np.random.default_rng(0), 500)
        engine.put(1, np.arange(500), vectors)
        engine.build_index(1)
        engine.put(1, np.arange(500, 550), vectors[:50])
        for one in engine.search(SearchRequest(vectors[:20], 10, (1,), (1,))):
            assert (np.diff(one.scores) <= 0).all()
            assert len(listed(one)) >= 10
