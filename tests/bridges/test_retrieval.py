"""Ranks and precisions against double loops."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges.base import Float64
from midspan.bridges.retrieval import average_precisions, reciprocal_ranks
from midspan.spaces import Metric


def nearness(a: Float64, b: Float64, metric: Metric) -> float:
    return -float(np.sum((a - b) ** 2)) if metric == "l2" else float(a @ b)


@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_against_loops(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midspan.bridges.retrieval.BLOCK", 4)
    rng = np.random.default_rng(0)
    queries, gallery = rng.standard_normal((11, 5)), rng.standard_normal((11, 5))
    labels = rng.integers(0, 3, 11)
    labels[10] = 9  # alone in its class
    ranks, precisions = [], []
    for i in range(11):
        order = sorted(range(11), key=lambda j: -nearness(queries[i], gallery[j], metric))
        ranks.append(1.0 / (order.index(i) + 1))
        hits, total = 0, 0.0
        for place, j in enumerate([j for j in order if j != i], start=1):
            if labels[j] == labels[i]:
                hits += 1
                total += hits / place
        precisions.append(total / hits if hits else np.nan)
    np.testing.assert_allclose(reciprocal_ranks(queries, gallery, metric), ranks)
    np.testing.assert_allclose(average_precisions(queries, gallery, labels, metric), precisions)


def test_a_map_to_one_point_earns_nothing() -> None:
    queries = np.random.default_rng(0).standard_normal((50, 4))
    assert reciprocal_ranks(queries, np.ones((50, 4)), "cosine").max() < 0.05


def test_the_true_gallery_is_found() -> None:
    queries = np.random.default_rng(0).standard_normal((50, 4))
    assert reciprocal_ranks(queries, queries, "l2").tolist() == [1.0] * 50
