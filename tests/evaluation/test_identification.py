from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midspan.errors import EvaluationError
from midspan.evaluation.identification import (
    Identified,
    identify,
    identify_scores,
    rank_k,
    tpir_at_fpir,
    tpir_at_fpir_rank,
    two_gallery_average,
)

Matrix = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEVELS = [-np.inf, 0.0, 0.1, 0.2, 0.3, 0.9]  # few, so that ties are the rule


@st.composite
def galleries(draw: st.DrawFn) -> tuple[Matrix, Ints, Ints]:
    probes, size = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    cells = draw(st.lists(st.sampled_from(LEVELS), min_size=probes * size, max_size=probes * size))
    subjects = st.integers(0, 4)
    probe_labels = draw(st.lists(subjects, min_size=probes, max_size=probes))
    gallery_labels = draw(st.lists(subjects, min_size=size, max_size=size))
    return (
        np.array(cells).reshape(probes, size),
        np.array(probe_labels),
        np.array(gallery_labels),
    )


def slow_rank(scores: Matrix, label: int, gallery: Ints) -> tuple[int, float]:
    """Sort the gallery by falling score, then by position; find the first mate with a face."""
    order = sorted(range(len(scores)), key=lambda g: (-scores[g], g))
    for rank, g in enumerate(order, start=1):
        if gallery[g] == label and scores[g] > -np.inf:
            return rank, float(scores[g])
    return 0, -np.inf


def slow_tpir(
    scores: Matrix, probes: Ints, gallery: Ints, percent: int
) -> tuple[float, float] | None:
    """The two rules, literally: (IJB-C, general at rank 1)."""
    ranked = [slow_rank(row, p, gallery) for row, p in zip(scores, probes, strict=True)]
    mated = [p in gallery for p in probes]
    maxima = sorted((max(row) for row, m in zip(scores, mated, strict=True) if not m), reverse=True)
    if not maxima or not any(mated):
        return None
    n = len(maxima)
    k = percent * n // 100
    ijbc = maxima[max(k - 1, 0)]
    of_mated = [r for r, m in zip(ranked, mated, strict=True) if m]
    above = [rank == 1 and score > ijbc for rank, score in of_mated]
    if k:
        general = [rank == 1 and score >= maxima[k - 1] for rank, score in of_mated]
    else:
        general = [rank == 1 and score > maxima[0] for rank, score in of_mated]
    return sum(above) / len(of_mated), sum(general) / len(of_mated)


@given(galleries())
def test_ranks_equal_a_sort(case: tuple[Matrix, Ints, Ints]) -> None:
    scores, probes, gallery = case
    result = identify_scores(scores, probe_labels=probes, gallery_labels=gallery)
    for row in range(len(probes)):
        rank, score = slow_rank(scores[row], probes[row], gallery)
        assert (result.rank[row], result.mate_score[row]) == (rank, score)
        assert result.mated[row] == (probes[row] in gallery)
        assert result.top_score[row] == max(scores[row])
    if result.mated.any():
        for k, rate in zip((1, 2, 5), rank_k(result, ranks=(1, 2, 5)), strict=True):
            hits = [1 <= result.rank[row] <= k for row in np.flatnonzero(result.mated)]
            assert rate == np.mean(hits)


@given(galleries(), st.sampled_from([0, 1, 10, 30, 50, 100]))
def test_open_set_rates_equal_the_two_rules(case: tuple[Matrix, Ints, Ints], percent: int) -> None:
    scores, probes, gallery = case
    result = identify_scores(scores, probe_labels=probes, gallery_labels=gallery)
    expected = slow_tpir(scores, probes, gallery, percent)
    if expected is None:
        with pytest.raises(EvaluationError, match=r"probes is (non-)?mated"):
            tpir_at_fpir(result, fpir=[percent / 100])
        return
    assert tpir_at_fpir(result, fpir=[percent / 100])[0] == pytest.approx(expected[0])
    assert tpir_at_fpir_rank(result, fpir=[percent / 100])[0] == pytest.approx(expected[1])


def test_first_place_is_not_enough_and_neither_is_the_score() -> None:
    """Mates: first and above, first and below, second and above; non-mated maxima .5 and .2."""
    scores = np.array(
        [
            [0.9, 0.1, 0.0],
            [0.1, 0.4, 0.0],
            [0.8, 0.1, 0.7],
            [0.5, 0.4, 0.3],
            [0.1, 0.2, 0.1],
        ]
    )
    result = identify_scores(
        scores,
        probe_labels=np.array(["a", "b", "c", "x", "y"]),
        gallery_labels=np.array(["a", "b", "c"]),
    )
    assert result.rank.tolist() == [1, 1, 2, 0, 0]
    np.testing.assert_allclose(rank_k(result, ranks=[1, 2]), [2 / 3, 1])
    # 2 non-mated: index max(floor(2·.5)-1, 0) = 0 → .5; max(floor(2·1)-1, 0) = 1 → .2
    np.testing.assert_allclose(tpir_at_fpir(result, fpir=[0.01, 0.5, 1.0]), [1 / 3, 1 / 3, 2 / 3])
    np.testing.assert_allclose(
        tpir_at_fpir_rank(result, fpir=[0.5], rank=2), [2 / 3]
    )  # .9 and .7 are at least .5


def test_the_general_rule_accepts_at_the_threshold_the_other_only_above() -> None:
    scores = np.array([[0.5, 0.1], [0.5, 0.2], [0.1, 0.1]])
    result = identify_scores(
        scores, probe_labels=np.array([0, 7, 8]), gallery_labels=np.array([0, 1])
    )
    assert tpir_at_fpir(result, fpir=[0.5])[0] == 0
    assert tpir_at_fpir_rank(result, fpir=[0.5])[0] == 1
    assert tpir_at_fpir_rank(result, fpir=[0.1])[0] == 0  # k = 0: above the largest


def test_the_threshold_index_is_that_of_the_decimal_rate() -> None:
    """29 % of 100 is 29, although 0.29 * 100 is less in floats."""
    assert math.floor(0.29 * 100) == 28
    scores = np.concatenate([[[0.715]], np.arange(100)[::-1, None] / 100])
    result = identify_scores(
        scores, probe_labels=np.array([0] + [9] * 100), gallery_labels=np.array([0])
    )
    # maxima fall from .99; index 28 is .71, index 27 would be .72
    assert tpir_at_fpir(result, fpir=[0.29])[0] == 1
    assert tpir_at_fpir_rank(result, fpir=[0.29])[0] == 1
    assert tpir_at_fpir(result, fpir=[0.28])[0] == 0


def test_several_mates_count_by_their_best() -> None:
    result = identify_scores(
        np.array([[0.3, 0.9, 0.8, 0.1]]),
        probe_labels=np.array([5]),
        gallery_labels=np.array([5, 1, 5, 2]),
    )
    assert (result.rank[0], result.mate_score[0]) == (2, 0.8)


def test_a_gallery_without_faces_identifies_nobody() -> None:
    result = identify_scores(
        np.full((2, 3), -np.inf), probe_labels=np.array([0, 9]), gallery_labels=np.arange(3)
    )
    assert result.rank.tolist() == [0, 0]
    assert result.mated.tolist() == [True, False]
    assert rank_k(result, ranks=[1, 3]).tolist() == [0, 0]
    assert tpir_at_fpir(result, fpir=[1.0])[0] == 0
    assert tpir_at_fpir_rank(result, fpir=[1.0])[0] == 0


@pytest.mark.parametrize("block", [1, 40, 333, 10**6])
def test_blocks_give_the_same_as_the_whole_matrix(block: int) -> None:
    rng = np.random.default_rng(0)
    probes = rng.integers(-3, 4, (30, 4)).astype(np.float32)  # whole numbers: exact products
    gallery = rng.integers(-3, 4, (40, 4)).astype(np.float32)
    probe_labels, gallery_labels = rng.integers(0, 60, 30), rng.integers(0, 60, 40)
    probe_present, gallery_present = rng.random(30) > 0.1, rng.random(40) > 0.1
    scores = probes @ gallery.T
    scores[~probe_present] = -np.inf
    scores[:, ~gallery_present] = -np.inf
    whole = identify_scores(scores, probe_labels=probe_labels, gallery_labels=gallery_labels)
    blocked = identify(
        probes,
        gallery,
        probe_labels=probe_labels,
        gallery_labels=gallery_labels,
        probe_present=probe_present,
        gallery_present=gallery_present,
        block=block,
    )
    for name in ("mated", "rank", "mate_score", "top_score"):
        assert getattr(blocked, name).tolist() == getattr(whole, name).tolist()
    assert blocked.n_gallery == 40
    assert 0 < whole.mated.sum() < 30


@pytest.mark.parametrize("block", [1, 5_000, 10**6])
def test_doubled_gallery_rows_rank_in_their_order(block: int) -> None:
    """Every mate stands a second time, earlier and under another name: rank 2, never 1."""
    rng = np.random.default_rng(7)
    gallery = rng.normal(size=(133, 37)).astype(np.float32)
    twice = np.concatenate([gallery, gallery[::-1]])
    labels = np.arange(266)
    result = identify(
        gallery, twice, probe_labels=labels[133:][::-1], gallery_labels=labels, block=block
    )
    assert (result.mate_score == result.top_score).all()
    assert (result.rank == 2).all()


def test_two_galleries_are_averaged_without_regard_to_size() -> None:
    assert two_gallery_average(np.array([1.0, 0.5]), np.array([0.0, 0.5])).tolist() == [0.5, 0.5]
    with pytest.raises(EvaluationError, match="not the same"):
        two_gallery_average(np.array([1.0]), np.array([0.0, 0.5]))


def test_what_cannot_be_answered_is_refused() -> None:
    labels = np.array([0, 1])
    with pytest.raises(EvaluationError, match="probe 1 hold NaN"):
        identify_scores(
            np.array([[0.1, 0.2], [0.1, np.nan]]), probe_labels=labels, gallery_labels=labels
        )
    with pytest.raises(EvaluationError, match="expected scores \\(P, G\\)"):
        identify_scores(np.zeros((2, 3)), probe_labels=labels, gallery_labels=labels)
    with pytest.raises(EvaluationError, match="no probes"):
        identify(
            np.zeros((0, 2), dtype=np.float32),
            np.ones((2, 2), dtype=np.float32),
            probe_labels=np.array([], dtype=int),
            gallery_labels=labels,
        )
    result: Identified = identify_scores(np.eye(2), probe_labels=labels, gallery_labels=labels)
    with pytest.raises(EvaluationError, match="none of the 2 probes is non-mated"):
        tpir_at_fpir(result)
    with pytest.raises(EvaluationError, match="ranks count from 1, got 0"):
        rank_k(result, ranks=[0])
    strangers = identify_scores(np.eye(2), probe_labels=labels + 5, gallery_labels=labels)
    with pytest.raises(EvaluationError, match="none of the 2 probes is mated"):
        rank_k(strangers)
