"""Engines on a server, which have no transactions: what the catalogue says is what counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.errors import StoreError
from midspan.gallery import Draft, Gallery
from midspan.gallery.engines import remote as remote_module
from midspan.gallery.engines.base import Engine, SearchRequest, pair_scores, prepare
from midspan.gallery.engines.remote import SpaceCandidates, best_of, chunks, find_candidates
from midspan.gallery.filters import Eq
from midspan.gallery.maintenance import Maintenance
from midspan.spaces import Embeddings, FloatArray, Metric, Space
from tests.gallery.conftest import Locate, engines, locator
from tests.gallery.samples import DIM, NEW, OLD, add, drafts, embed, found, start, unit, view


@pytest.fixture(params=engines(("qdrant+local", "milvus+lite", "milvus")))
def remote(request: pytest.FixtureRequest) -> Locate:
    return locator(request)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is repaired in the background: the test looks at what there is to repair."""
    monkeypatch.setattr(Maintenance, "_begin", lambda self: None)


def engine_of(gallery: Gallery) -> Engine:
    return gallery._session.engine


# ---- garbage


@pytest.mark.usefixtures("quiet")
def test_many_aborted_writes_appear_in_no_answer(
    remote: Locate, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Gallery.create(remote(), OLD) as gallery:
        ids = [f"i{number}" for number in range(5)]
        add(gallery, ids)
        engine = engine_of(gallery)
        put = engine.put

        def broken(*arguments: Any, **named: Any) -> None:
            put(*arguments, **named)
            raise StoreError("lost the connection after the vectors were written")

        monkeypatch.setattr(engine, "put", broken)
        for number in range(110):
            with pytest.raises(StoreError, match="lost the connection"):
                add(gallery, [f"ghost{number}"])
        monkeypatch.undo()
        monkeypatch.setattr(Maintenance, "_begin", lambda self: None)
        assert engine.count(1) == 115
        assert (len(gallery), gallery.count().stored) == (5, {OLD.fingerprint: 5})
        ghosts = embed([f"ghost{number}" for number in range(3)])
        for hits in view(gallery, ghosts.vectors, k=200):
            assert sorted(hit.id for hit in hits) == ids
        verified = gallery.verify()
        assert (verified.ok, verified.garbage) == (True, 110)
        gallery.optimise()
        assert (engine.count(1), gallery.verify().garbage) == (5, 0)
        assert sorted(found(view(gallery, ghosts.vectors[:1], k=200))[0]) == ids


@pytest.mark.usefixtures("quiet")
def test_deleted_rows_revived_by_a_server_are_removed(remote: Locate) -> None:
    """As Milvus 2.3 does when it compacts its segments."""
    with Gallery.create(remote(), OLD) as gallery:
        ids = [f"i{number}" for number in range(8)]
        add(gallery, ids, payloads=[{"n": number} for number in range(8)])
        engine = engine_of(gallery)
        rows = engine.rows(1, after=0, limit=100)
        there, vectors = engine.fetch(1, rows)
        gallery.delete(ids[:3])
        gallery.put_drafts([Draft("i3")], [embed(["i3"], seed=1)], mode="replace")
        before = view(gallery, vectors, k=8), gallery.count(), gallery.get_many(ids)
        engine.put(1, there[:4], vectors[:4], payloads=[f'{{"n": {n}}}' for n in range(4)])
        assert engine.count(1) == 9
        assert (view(gallery, vectors, k=8), gallery.count(), gallery.get_many(ids)) == before
        assert found(view(gallery, vectors[:1], filter=Eq("n", 0))) == [[]]
        assert gallery.verify().garbage == 4
        gallery.optimise()
        assert (engine.count(1), gallery.verify().garbage) == (5, 0)
        assert view(gallery, vectors, k=8) == before[0]


# ---- filters and equal scores


def reference(query: FloatArray, vectors: FloatArray, metric: Metric) -> FloatArray:
    prepared = prepare(vectors, metric=metric) if len(vectors) else vectors
    return pair_scores(prepare(query[None], metric=metric)[0], prepared, metric=metric)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_remote_candidates_include_ties_of_the_last(remote: Locate, metric: Metric) -> None:
    space = Space(name="s", dim=DIM, metric=metric)
    with Gallery.create(remote(), space) as gallery:
        vectors = np.tile(unit(np.random.default_rng(0), 3) * 2, (40, 1))  # each 40 times
        ids = np.array([f"i{number:03}" for number in range(120)])
        gallery.put_drafts(drafts(ids.tolist()), [Embeddings(ids, vectors, space)], mode="add")
        request = SearchRequest(vectors[:1], 3, (1,), (1,))
        (got,) = engine_of(gallery).search(request)
        scores = reference(vectors[0], vectors, metric)
        equal = (got.scores == scores.max()).sum()
        assert equal == 40
        assert got.scores.tolist() == sorted(got.scores.tolist(), reverse=True)


# ---- candidates, without a server


def table(vectors: FloatArray, *, noise: float = 0.0) -> Callable[..., list[SpaceCandidates]]:
    """A server that knows these rows, and whose scores are off by a little."""

    def probe(number: int, queries: FloatArray, limit: int) -> list[SpaceCandidates]:
        rows = np.arange(len(vectors))
        return [
            remote_module.scored(
                query,
                *_first(rows, vectors, query, limit),
                metric="dot",
                cut=None
                if limit > len(rows)
                else float(np.sort(vectors @ query)[::-1][limit - 1] + noise),
            )
            for query in queries
        ]

    return probe


def _first(rows: Any, vectors: FloatArray, query: FloatArray, limit: int) -> tuple[Any, FloatArray]:
    order = np.argsort(-(vectors @ query), kind="stable")[:limit]
    return rows[order], vectors[order]


@pytest.mark.parametrize("k", [1, 7, 100, 400])
def test_remote_search_requests_more_until_complete(k: int) -> None:
    rng = np.random.default_rng(k)
    vectors = rng.integers(-1, 2, (300, 4)).astype(np.float32)  # many equal scores
    queries = rng.integers(-1, 2, (5, 4)).astype(np.float32)
    request = SearchRequest(queries, k, (1,), (1,))
    for query, got in zip(
        queries, find_candidates(request, queries, table(vectors), factor=1.0), strict=True
    ):
        scores = reference(query, vectors, "dot")
        last = np.sort(scores)[::-1][min(k, 300) - 1]
        assert set(np.flatnonzero(scores >= last)) <= set(got.rows.tolist())
        np.testing.assert_array_equal(got.scores, scores[got.rows])
        assert got.complete == (len(got.rows) == 300)


def test_send_several_chunks_are_under_way_at_once_and_a_failure_is_raised() -> None:
    together, sent = threading.Barrier(3), list[int]()

    def take(chunk: list[int]) -> None:
        together.wait(timeout=30)  # nobody leaves before three are here
        sent.extend(chunk)
        if 4 in chunk:
            raise StoreError("no room")

    parts = chunks([(number, 1) for number in range(6)], rows=1, size=100)
    with pytest.raises(StoreError, match="no room"):
        remote_module.send(parts, take, streams=3)
    assert sorted(sent) == [0, 1, 2, 3, 4, 5]


def test_remote_row_appears_once_in_its_best_space() -> None:
    old, new = np.eye(4, dtype=np.float32), -np.eye(4, dtype=np.float32)[:2]

    def probe(number: int, queries: FloatArray, limit: int) -> list[SpaceCandidates]:
        vectors = {1: old, 2: new}[number]
        page = np.arange(len(vectors)), vectors
        return best_of([page], queries, limit=limit, metric="dot")

    request = SearchRequest(old[:1], 10, (2, 1), (2, 1))
    (got,) = find_candidates(request, old[:1], probe, factor=1.0)
    assert dict(zip(got.rows.tolist(), got.spaces.tolist(), strict=True)) == {
        0: 2,
        1: 2,
        2: 1,
        3: 1,
    }
    assert got.complete


def test_remote_late_backfill_searches_the_remaining_old_rows(
    remote: Locate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "NAMED_FROM", 100)
    ids = [f"i{number:03}" for number in range(300)]
    with Gallery.create(remote(), OLD) as gallery:
        add(gallery, ids)
        start(gallery)
        done = ids[4:]
        gallery.add_missing_vectors(embed(done, NEW), revisions=[1] * len(done))
        query = embed(["i200"]).vectors  # whose own vector is superseded
        (hits,) = view(gallery, query, k=4, among=(OLD.fingerprint,))
        assert sorted(hit.id for hit in hits) == ids[:4]
        rows = remote_module.named_rows(
            gallery._session.catalogue,
            SearchRequest(query, 100, (2, 1), (1,)),
            1,
        )
        assert rows is not None
        assert len(rows) == 4


def test_remote_closed_gallery_raises(remote: Locate) -> None:
    gallery = Gallery.create(remote(), OLD)
    engine = engine_of(gallery)
    gallery.close()
    with pytest.raises(StoreError, match="is closed"):
        engine.count(1)


def test_create_where_another_gallery_is_raises(remote: Locate, tmp_path: Path) -> None:
    location = remote()
    Gallery.create(location, OLD).close()
    other = location.partition("?")[0] + f"?catalogue={tmp_path / 'other.db'}"
    with pytest.raises(Exception, match="collections of another gallery"):
        Gallery.create(other, OLD)
    assert not (tmp_path / "other.db").exists()
