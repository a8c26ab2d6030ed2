from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midspan.errors import EvaluationError
from midspan.evaluation.verification import (
    allowed,
    eer,
    kfold_accuracy,
    roc,
    tar_at_far,
    threshold_at_far,
)

Floats = npt.NDArray[np.float64]

# Few distinct values, so that ties are the rule; −inf stands for a pair without a face.
tied_scores = st.lists(
    st.sampled_from([-np.inf, -0.5, 0.0, 0.1, 0.2, 0.3, 0.5, 0.9]), min_size=1, max_size=40
).map(np.array)
rates = st.integers(0, 100).map(lambda percent: percent / 100)


def slow_tar(genuine: Floats, impostor: Floats, percent: Fraction) -> float:
    """Full sort, (k+1)-th largest, count."""
    k = int(percent * len(impostor))
    falling = sorted(impostor, reverse=True)
    threshold = falling[k] if k < len(falling) else -np.inf
    return float(sum(score > threshold for score in genuine) / len(genuine))


# ---- the count of allowed false accepts ---------------------------------------------------------


def test_the_floor_is_that_of_the_decimal_number() -> None:
    assert allowed(1e-4, 10_000) == 1
    assert allowed(0.29, 100) == 29
    assert 0.29 * 100 < 29  # what plain floats would floor to 28
    assert allowed(1e-6, 15_638_932) == 15
    assert allowed(1e-4, 9_999) == 0
    assert allowed(1.0, 7) == 7
    assert allowed(np.float64(1e-5), 100_000) == 1
    assert allowed(np.float32(1e-4), 10_000) == 1  # type: ignore[arg-type]


@given(digits=st.integers(1, 999), exponent=st.integers(3, 9), count=st.integers(1, 10**9))
def test_the_floor_is_exact_for_every_short_decimal(digits: int, exponent: int, count: int) -> None:
    assert allowed(float(f"{digits}e-{exponent}"), count) == digits * count // 10**exponent


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_rates_outside_of_0_to_1_are_refused(rate: float) -> None:
    with pytest.raises(EvaluationError, match="between 0 and 1"):
        allowed(rate, 10)


# ---- TAR at FAR ---------------------------------------------------------------------------------


def test_threshold_by_hand() -> None:
    impostor = np.array([0.1, 0.6, 0.2, 0.4])
    assert threshold_at_far(impostor, far=0.0) == 0.6
    assert threshold_at_far(impostor, far=0.25) == 0.4
    assert threshold_at_far(impostor, far=0.49) == 0.4
    assert threshold_at_far(impostor, far=1.0) == -np.inf
    assert threshold_at_far(impostor, far=[0.5, 0.0]).tolist() == [0.2, 0.6]


@given(genuine=tied_scores, impostor=tied_scores, rate=rates)
def test_tar_equals_a_full_sort(genuine: Floats, impostor: Floats, rate: float) -> None:
    expected = slow_tar(genuine, impostor, Fraction(round(rate * 100), 100))
    assert tar_at_far(genuine, impostor, far=rate) == expected
    many = tar_at_far(genuine, impostor, far=[rate, 0.0, 1.0])
    assert many[0] == expected
    assert many[2] == np.mean(genuine > -np.inf)


@given(impostor=tied_scores, rate=rates)
def test_never_more_false_accepts_than_allowed(impostor: Floats, rate: float) -> None:
    threshold = threshold_at_far(impostor, far=rate)
    assert (impostor > threshold).sum() <= allowed(rate, len(impostor))


def test_genuine_pairs_without_a_face_are_never_accepted() -> None:
    genuine = np.array([-np.inf, 0.9])
    assert tar_at_far(genuine, np.array([0.1, -np.inf]), far=1.0) == 0.5
    assert tar_at_far(genuine, np.array([-np.inf, -np.inf]), far=0.0) == 0.5


@pytest.mark.parametrize(
    ("genuine", "impostor", "message"),
    [
        ([0.5, np.nan], [0.1], "1 of 2 genuine scores are NaN"),
        ([0.5], [np.inf], "impostor scores are NaN or \\+inf, first at 0"),
        ([], [0.1], "genuine scores: expected .*got \\(0,\\)"),
        ([0.1], [], "impostor scores: expected .*got \\(0,\\)"),
        ([[0.1]], [0.1], "expected \\(N,\\)"),
    ],
)
def test_bad_scores_are_named(genuine: list[float], impostor: list[float], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        tar_at_far(np.array(genuine, dtype=float), np.array(impostor, dtype=float), far=0.1)


def test_whole_numbers_are_not_scores() -> None:
    with pytest.raises(EvaluationError, match="expected floats, got int64"):
        tar_at_far(np.array([1, 2]), np.array([0.1]), far=0.1)


# ---- ROC and EER --------------------------------------------------------------------------------


@given(genuine=tied_scores, impostor=tied_scores)
def test_each_point_of_the_roc_is_a_count(genuine: Floats, impostor: Floats) -> None:
    curve = roc(genuine, impostor)
    for far, tar, threshold in zip(curve.far, curve.tar, curve.thresholds, strict=True):
        assert far == sum(score > threshold for score in impostor) / len(impostor)
        assert tar == sum(score > threshold for score in genuine) / len(genuine)
    assert (np.diff(curve.thresholds) < 0).all()
    assert set(curve.thresholds) == {*genuine, *impostor, -np.inf}
    assert (curve.far[0], curve.tar[0]) == (0, 0)


@given(genuine=tied_scores, impostor=tied_scores, rate=rates)
def test_tar_at_far_is_the_best_point_of_the_roc_within_the_far(
    genuine: Floats, impostor: Floats, rate: float
) -> None:
    curve = roc(genuine, impostor)
    within = curve.tar[curve.far * len(impostor) <= allowed(rate, len(impostor)) + 1e-9]
    # The rule takes an impostor score as threshold, the ROC also has those of genuine pairs.
    assert tar_at_far(genuine, impostor, far=rate) <= within.max()
    impostors_only = np.isin(curve.thresholds, impostor) | np.isinf(curve.thresholds)
    allowed_points = curve.far * len(impostor) <= allowed(rate, len(impostor)) + 1e-9
    best = curve.tar[impostors_only & allowed_points].max(initial=0)
    assert tar_at_far(genuine, impostor, far=rate) == best


def test_a_compressed_roc_keeps_exact_points_and_both_ends() -> None:
    rng = np.random.default_rng(3)
    curve = roc(rng.normal(1, 1, 3_000), rng.normal(0, 1, 20_000))
    small = curve.compressed(200)
    assert 100 < len(small.far) <= 200
    full = set(zip(curve.far, curve.tar, curve.thresholds, strict=True))
    assert set(zip(small.far, small.tar, small.thresholds, strict=True)) <= full
    assert (small.far[0], small.far[-1], small.tar[-1]) == (0, 1, 1)
    # Dense where false accepts are rare, which is where people look.
    assert (small.far < 1e-2).sum() > 30
    with pytest.raises(EvaluationError, match="at least 2 points"):
        curve.compressed(1)


def test_compressing_without_need_only_drops_straight_lines() -> None:
    curve = roc(np.array([0.9, 0.8, 0.7]), np.array([0.3, 0.2, 0.1]))
    small = curve.compressed(100)
    assert list(zip(small.far, small.tar, strict=True)) == [(0, 0), (0, 1), (1, 1)]


def test_equal_error_rate_by_hand() -> None:
    assert eer(np.array([0.8, 0.9]), np.array([0.1, 0.2])) == 0
    assert eer(np.array([0.1, 0.2]), np.array([0.8, 0.9])) == 1
    assert eer(np.array([0.9, 0.2]), np.array([0.8, 0.1])) == 0.5
    # far 0 → 1/3 while the rejects stay at 1/4: the line crosses at 1/4.
    genuine, impostor = np.array([0.9, 0.8, 0.7, 0.1]), np.array([0.6, 0.0, -0.1])
    assert eer(genuine, impostor) == pytest.approx(0.25)


@given(genuine=tied_scores, impostor=tied_scores)
def test_equal_error_rate_lies_where_the_curves_cross(genuine: Floats, impostor: Floats) -> None:
    curve = roc(genuine, impostor)
    reject = 1 - curve.tar
    if curve.far[-1] < reject[-1]:
        with pytest.raises(EvaluationError, match="no equal error rate"):
            eer(genuine, impostor)
        return
    rate = eer(genuine, impostor)
    before = curve.far < reject
    after = curve.far >= reject
    assert curve.far[before].max(initial=0) - 1e-12 <= rate <= curve.far[after].min() + 1e-12
    assert reject[after].max(initial=0) - 1e-12 <= rate <= reject[before].min(initial=1) + 1e-12


# ---- k folds ------------------------------------------------------------------------------------


def slow_kfold(scores: Floats, same: npt.NDArray[np.bool_], folds: int) -> list[float]:
    """Try a threshold in each gap of the training scores and keep the first best from above."""
    accuracy = []
    for test in np.array_split(np.arange(len(scores)), folds):
        train = np.setdiff1d(np.arange(len(scores)), test)
        values = sorted({float(s) for s in scores[train] if np.isfinite(s)})
        if values:
            gaps = [(a + b) / 2 for a, b in pairwise(values)]
            candidates = [values[-1], *gaps[::-1], -np.inf]
        else:
            candidates = [-np.inf]
        right = [np.mean((scores[train] > t) == same[train]) for t in candidates]
        best = candidates[int(np.argmax(right))]
        accuracy.append(float(np.mean((scores[test] > best) == same[test])))
    return accuracy


@given(
    pairs=st.lists(
        st.tuples(st.sampled_from([-np.inf, 0.1, 0.2, 0.3, 0.4]), st.booleans()),
        min_size=12,
        max_size=12,
    ),
    folds=st.sampled_from([2, 3, 4]),
)
def test_kfold_equals_trying_every_gap(pairs: list[tuple[float, bool]], folds: int) -> None:
    scores = np.array([score for score, _ in pairs])
    same = np.array([flag for _, flag in pairs])
    result = kfold_accuracy(scores, same, folds)
    assert result.accuracy.tolist() == slow_kfold(scores, same, folds)
    assert result.mean == pytest.approx(np.mean(result.correct))  # folds of equal size
    assert result.std == pytest.approx(np.sqrt(np.mean((result.accuracy - result.mean) ** 2)))


def test_the_threshold_never_sees_its_own_fold() -> None:
    # On fold 0 only a low threshold is right, on the others only a high one.
    scores = np.array([0.2, 0.1, 0.9, 0.6, 0.9, 0.6])
    same = np.array([True, False] * 3)
    result = kfold_accuracy(scores, same, 3)
    assert result.accuracy.tolist() == [0.5, 1.0, 1.0]
    assert result.thresholds[0] == pytest.approx(0.75)
    numbered = kfold_accuracy(scores[::-1], same[::-1], folds=np.array([2, 2, 1, 1, 0, 0]))
    assert numbered.accuracy.tolist() == result.accuracy.tolist()


def test_bad_folds_are_refused() -> None:
    scores, same = np.array([0.1, 0.2, 0.3]), np.array([True, False, True])
    with pytest.raises(EvaluationError, match="3 pairs cannot be cut into 4 folds"):
        kfold_accuracy(scores, same, 4)
    with pytest.raises(EvaluationError, match="at least two different"):
        kfold_accuracy(scores, same, folds=np.zeros(3))
    with pytest.raises(EvaluationError, match="'same' has shape"):
        kfold_accuracy(scores, same[:2], 2)
