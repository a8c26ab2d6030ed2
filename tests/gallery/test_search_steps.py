"""The short ways of a search give what the long ones give, and see what others wrote."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from midspan.errors import VectorError
from midspan.gallery import Gallery, rules
from midspan.gallery.index.found import Found
from midspan.gallery.scores import pair_scores
from midspan.gallery.stores.sqlite.hits import read_hits
from midspan.gallery.stores.sqlite.store import SqliteStore
from midspan.spaces import FloatArray, Metric
from midspan.upgrade import routing
from tests.gallery.samples import OLD, add, embed


def slow_score(query: FloatArray, row: FloatArray, metric: Metric) -> np.float32:
    wide = row.astype(np.float64)
    if metric == "l2":
        return np.float32(-((wide - query) ** 2).sum())
    return np.float32((wide * query.astype(np.float64)).sum())


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("dim", [3, 128, 130])
def test_scores_of_many_queries_are_those_of_each_pair_to_the_bit(metric: Metric, dim: int) -> None:
    rng = np.random.default_rng(dim)
    queries = rng.standard_normal((5, dim)).astype(np.float32)
    rows = rng.standard_normal((5, 9, dim)).astype(np.float32)
    scores = pair_scores(queries[:, None], rows, metric=metric)
    for query, mine, got in zip(queries, rows, scores, strict=True):
        assert got.tolist() == [slow_score(query, row, metric) for row in mine]
        assert np.array_equal(pair_scores(query, mine, metric=metric), got)


@pytest.mark.parametrize("value", [1.0, 1e-12, 1e-30, 0.0, 1e17, 3e17, 1e25, np.nan, np.inf])
@pytest.mark.parametrize("count", [1, 3])
def test_a_query_that_passes_by_its_length_passes_by_its_peak(value: float, count: int) -> None:
    rows = np.zeros((count, 12), dtype=np.float32)
    rows[:, 0] = 1.0
    rows[-1, 0] = value
    with np.errstate(over="ignore"):
        fine = rules._plainly_fine(rows)
    try:
        rules._check_numbers(rows, OLD)
    except VectorError:
        assert not fine


class Looks:
    """Counts how often a store asks whether somebody wrote."""

    def __init__(self, gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(gallery.store, SqliteStore)
        database, self.count = gallery.store._database, 0
        ask = database.commits

        def counted() -> int:
            self.count += 1
            return ask()

        monkeypatch.setattr(database, "commits", counted)


@pytest.mark.parametrize("way", ["gallery", "routing"])
def test_one_look_a_search_is_enough_to_see_what_others_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    place = tmp_path / "shop.midspan"
    with Gallery.create(place, OLD) as gallery, Gallery.open(place) as other:
        add(gallery.store, ["a", "b"])
        search = gallery.search if way == "gallery" else partial(routing.search, gallery)
        query = embed(["c"])
        assert {hit.id for hit in search(query, k=3)[0]} == {"a", "b"}
        looks = Looks(gallery, monkeypatch)
        add(other.store, ["c"])
        assert search(query, k=1)[0][0].id == "c"
        other.delete(["c"])
        assert {hit.id for hit in search(query, k=3)[0]} == {"a", "b"}
        assert looks.count == 2


def test_equal_scores_stand_by_id_also_where_some_items_are_gone(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "shop.midspan", OLD) as gallery:
        add(gallery.store, ["d", "b", "a", "c"])
        store = gallery.store
        assert isinstance(store, SqliteStore)
        found = Found(
            items=np.array([1, 99, 2, 3, 4]),
            spaces=np.ones(5, dtype=np.int64),
            scores=np.array([0.9, 0.8, 0.5, 0.5, 0.5], dtype=np.float32),
        )

        class Asked:
            k, filter, threshold = 3, None, None

        (hits,) = read_hits(store._texts, [found], {1: OLD}, Asked())  # type: ignore[arg-type]
        assert [hit.id for hit in hits] == ["d", "a", "b"]
        assert [hit.score for hit in hits] == pytest.approx([0.9, 0.5, 0.5])
