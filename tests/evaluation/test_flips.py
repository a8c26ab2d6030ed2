"""Negative and positive flips."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midspan.errors import EvaluationError
from midspan.evaluation import flips, flips_by_group, precision_flips

hits = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)


@settings(deadline=None, max_examples=40)
@given(pairs=hits)
def test_accuracy_changes_by_positive_minus_negative(pairs: list[tuple[int, int]]) -> None:
    before, after = np.array(pairs).T
    result = flips(before, after, n=20)
    assert after.mean() - before.mean() == pytest.approx(result.positive - result.negative)
    assert result.n_queries == len(pairs)


def test_flips_by_hand() -> None:
    before = np.array([1, 1, 1, 0, 0, np.nan])
    after = np.array([1, 0, 0, 1, 0, 1.0])
    result = flips(before, after)
    assert (result.negative, result.positive) == (0.4, 0.2)
    assert result.relative == pytest.approx(0.4 / (0.6 * 0.6))  # ER before .4, after .6
    assert result.n_queries == 5
    assert result.negative_ci[0] <= 0.4 <= result.negative_ci[1]


def test_no_errors_after_leave_nothing_to_relate_to() -> None:
    result = flips(np.array([1, 0]), np.array([1, 1]))
    assert result.negative == 0
    assert math.isnan(result.relative)


def test_precision_drop_beyond_epsilon() -> None:
    before, after = np.array([0.5, 0.5, 0.5, np.nan]), np.array([0.45, 0.3, 0.6, 0.1])
    exact = precision_flips(before, after)
    assert (exact.negative, exact.positive) == pytest.approx((2 / 3, 1 / 3))
    coarse = precision_flips(before, after, epsilon=0.1)
    assert (coarse.negative, coarse.positive) == pytest.approx((1 / 3, 0.0))


def test_groups() -> None:
    before, after = np.array([1, 1, 0, np.nan]), np.array([0, 1, 1, np.nan])
    result = flips_by_group(before, after, np.array(["a", "a", "b", "c"]))
    assert list(result) == ["a", "b"]
    assert (result["a"].negative, result["b"].positive) == (0.5, 1.0)


def test_refusals() -> None:
    with pytest.raises(EvaluationError, match="hits are 0 or 1"):
        flips(np.array([0.5]), np.array([1.0]))
    with pytest.raises(EvaluationError, match="same queries"):
        flips(np.array([1.0, 0.0]), np.array([1.0]))
    with pytest.raises(EvaluationError, match="no query has an answer"):
        flips(np.array([np.nan]), np.array([1.0]))
    with pytest.raises(EvaluationError, match="epsilon"):
        precision_flips(np.array([0.5]), np.array([0.5]), epsilon=-1)
    with pytest.raises(EvaluationError, match="group names"):
        flips_by_group(np.array([1.0]), np.array([1.0]), np.array(["a", "b"]))
