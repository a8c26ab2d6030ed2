"""The best rows, against sorting all of them."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.gallery.engines.embedded.search import NO_ROW, TopK, scan
from midspan.spaces import FloatArray, Metric


def sort_all(queries: FloatArray, rows: FloatArray, metric: Metric) -> FloatArray:
    scores = queries.astype(np.float64) @ rows.astype(np.float64).T
    if metric == "l2":
        scores -= 0.5 * (rows.astype(np.float64) ** 2).sum(axis=1)
    return np.argsort(-scores, axis=1)  # type: ignore[return-value]


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize(("queries", "k"), [(1, 1), (1, 7), (5, 30), (40, 3), (3, 1000)])
def test_top_k_equals_a_full_sort(metric: Metric, queries: int, k: int) -> None:
    rng = np.random.default_rng(k)
    rows = rng.standard_normal((500, 6)).astype(np.float32)
    asked = rng.standard_normal((queries, 6)).astype(np.float32)
    best = TopK(queries, k)
    places = np.arange(500)
    for start in range(0, 500, 77):
        part = slice(start, start + 77)
        scan(best, asked, [(places[part], rows[part], None)], metric=metric)
    scores, found = best.sorted()
    expected = sort_all(asked, rows, metric)[:, :k]
    np.testing.assert_array_equal(found[:, :500], expected)
    assert (np.diff(scores[:, : min(k, 500)]) <= 0).all()
    assert (found[:, 500:] == NO_ROW).all()
    assert np.isneginf(scores[:, 500:]).all()


def test_top_k_excluded_rows_are_left_out() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 4)).astype(np.float32)
    counts = rng.random(300) < 0.1
    best = TopK(2, 50)
    scan(best, rows[:2], [(np.arange(300), rows, counts)], metric="dot")
    _, found = best.sorted()
    assert set(found[0][found[0] != NO_ROW].tolist()) == set(np.flatnonzero(counts).tolist())


def test_top_k_without_rows_is_empty() -> None:
    scores, rows = TopK(2, 3).sorted()
    assert np.isneginf(scores).all()
    assert (rows == NO_ROW).all()
