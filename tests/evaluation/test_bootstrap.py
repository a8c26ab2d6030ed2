"""Percentile intervals over queries."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import EvaluationError
from midspan.evaluation import bootstrap, bootstrap_ci
from midspan.evaluation.bootstrap import bootstrap_means, by_group


def test_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(0).standard_normal(2000)
    low, high = bootstrap_ci(values, n=4000)
    assert low == pytest.approx(values.mean() - 1.96 / np.sqrt(2000), abs=0.006)
    assert high == pytest.approx(values.mean() + 1.96 / np.sqrt(2000), abs=0.006)
    narrow = bootstrap_ci(values, n=4000, level=0.5)
    assert low < narrow[0] < narrow[1] < high


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for seed in range(100):
        low, high = bootstrap_ci(rng.random(80), n=300, seed=seed, level=0.9)
        covered += low <= 0.5 <= high
    assert 80 <= covered <= 98


def test_paired_values_are_resampled_together() -> None:
    rng = np.random.default_rng(2)
    first = rng.random(300)
    second = first + 0.1
    low, high = bootstrap_ci(first, second, statistic=lambda a, b: b - a)
    assert (low, high) == pytest.approx((0.1, 0.1))


def test_the_seed_decides_and_the_block_size_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).random(50)
    assert bootstrap_ci(values, seed=1) == bootstrap_ci(values, seed=1)
    assert bootstrap_ci(values, seed=1) != bootstrap_ci(values, seed=2)
    whole = bootstrap_means(values, n=40)
    monkeypatch.setattr(bootstrap, "DRAWS_AT_ONCE", 150)
    np.testing.assert_allclose(bootstrap_means(values, n=40), whole, rtol=1e-12)


def test_unanswered_queries_and_undefined_statistics_are_left_out() -> None:
    values = np.array([0.5, np.nan, 0.5])
    assert bootstrap_ci(values) == (0.5, 0.5)
    assert np.isnan(bootstrap_ci(np.array([np.nan]))).all()
    assert np.isnan(bootstrap_ci(values, statistic=lambda a: a / 0)).all()


def test_values_by_group() -> None:
    groups = by_group(np.array([0.1, 0.2, np.nan, 0.4]), np.array([2, 1, 1, 2]))
    assert {name: values.tolist() for name, values in groups.items()} == {
        "1": [0.2],
        "2": [0.1, 0.4],
    }
    with pytest.raises(EvaluationError, match="group names"):
        by_group(np.array([0.1]), np.array([1, 2]))


def test_refusals() -> None:
    with pytest.raises(EvaluationError, match="at least one array and n >= 1, got 0"):
        bootstrap_ci()
    with pytest.raises(EvaluationError, match="n = 0"):
        bootstrap_ci(np.ones(3), n=0)
    with pytest.raises(EvaluationError, match="same queries"):
        bootstrap_ci(np.ones(3), np.ones(2))
    with pytest.raises(EvaluationError, match=r"expected a level between 0 and 1, .* got 95"):
        bootstrap_ci(np.ones(3), level=95)
