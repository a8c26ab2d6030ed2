from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midspan.errors import EvaluationError
from midspan.evaluation.pairs import (
    Largest,
    ScoreBlock,
    all_pairs,
    count_impostors,
    score_pairs,
    verify,
)
from midspan.evaluation.verification import tar_at_far, threshold_at_far

Floats = npt.NDArray[np.float64]

# Few distinct values, so that ties are the rule; −inf stands for a pair without a face.
tied_scores = st.lists(
    st.sampled_from([-np.inf, -0.5, 0.0, 0.1, 0.2, 0.3, 0.5, 0.9]), min_size=1, max_size=40
).map(np.array)
rates = st.integers(0, 100).map(lambda percent: percent / 100)


# ---- streams ------------------------------------------------------------------------------------


def in_blocks(scores: Floats, same: npt.NDArray[np.bool_], size: int) -> Iterator[ScoreBlock]:
    for start in range(0, len(scores), size):
        yield scores[start : start + size], same[start : start + size]


@given(
    genuine=tied_scores,
    impostor=tied_scores,
    far=st.lists(rates, min_size=1, max_size=4),
    size=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_a_stream_gives_what_memory_gives(
    genuine: Floats, impostor: Floats, far: list[float], size: int, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(genuine) + len(impostor))
    scores = np.concatenate([genuine, impostor])[order]
    same = (np.arange(len(order)) < len(genuine))[order]
    streamed = verify(in_blocks(scores, same, size), far=far, n_impostor=len(impostor))
    assert streamed.tar.tolist() == tar_at_far(genuine, impostor, far=far).tolist()
    assert streamed.thresholds.tolist() == threshold_at_far(impostor, far=far).tolist()
    assert (streamed.n_genuine, streamed.n_impostor) == (len(genuine), len(impostor))


def test_a_long_stream_with_ties_is_exact_and_small() -> None:
    """A million scores pass; what stays is a few times the kept tail, not the stream."""
    count, size = 1_000_000, 20_000
    rng = np.random.default_rng(0)
    genuine = rng.normal(0.5, 0.2, 2_000).astype(np.float32)
    seeds = rng.integers(0, 2**32, count // size)

    def block(seed: int) -> npt.NDArray[np.float32]:
        values = np.random.default_rng(seed).normal(0, 0.1, size)
        return np.round(values, 3).astype(np.float32)

    def stream() -> Iterator[ScoreBlock]:
        yield genuine, np.ones(len(genuine), dtype=bool)
        for seed in seeds:
            yield block(seed), np.zeros(size, dtype=bool)

    far = [1e-6, 1e-5, 1e-4, 1e-3]
    expected = tar_at_far(genuine, np.concatenate([block(seed) for seed in seeds]), far=far)
    tracemalloc.start()
    result = verify(stream(), far=far, n_impostor=count)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.tar.tolist() == expected.tolist()
    assert len(set(result.tar)) == len(far)
    assert peak < 2_000_000 < count * 4


def test_largest_keeps_the_multiset() -> None:
    rng = np.random.default_rng(1)
    stream = [np.round(rng.normal(size=3_000), 1) for _ in range(60)]
    largest = Largest(500)
    for values in stream:
        largest.add(values)
    expected = np.sort(np.concatenate(stream))[::-1][:500]
    assert largest.values().tolist() == expected.tolist()


def test_streams_that_do_not_add_up_are_refused() -> None:
    scores, same = np.array([0.1, 0.2]), np.array([True, False])
    with pytest.raises(EvaluationError, match="1 impostor pairs came, 5 were announced"):
        verify([(scores, same)], far=[0.1], n_impostor=5)
    with pytest.raises(EvaluationError, match="no impostor pairs"):
        verify([], far=[0.1], n_impostor=0)
    with pytest.raises(EvaluationError, match="1 pairs have the score NaN"):
        verify([(np.array([np.nan, 0.1]), same)], far=[0.1], n_impostor=1)
    with pytest.raises(EvaluationError, match="genuine scores: expected"):
        verify([(scores, np.array([False, False]))], far=[0.1], n_impostor=2)


# ---- scoring pairs ------------------------------------------------------------------------------


def unit_rows(count: int, dim: int, seed: int) -> npt.NDArray[np.float32]:
    rows = np.random.default_rng(seed).normal(size=(count, dim))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


@pytest.mark.parametrize("block", [1, 7, 50, 1000])
@pytest.mark.parametrize("listed", ["dense", "sparse"])
def test_pairs_are_scored_in_order(block: int, listed: str) -> None:
    templates = unit_rows(40, 8, seed=0)
    rng = np.random.default_rng(1)
    if listed == "dense":  # each of a few left rows with many right ones
        left, right = np.repeat(np.arange(5), 30), np.tile(np.arange(10, 40), 5)
    else:
        left, right = rng.integers(0, 40, 150), rng.integers(0, 40, 150)
    present = np.ones(40, dtype=bool)
    present[[3, 17]] = False
    scores = np.full(150, np.nan, dtype=np.float32)
    for part, values in score_pairs(templates, left, right, present=present, block=block):
        assert part.stop - part.start <= block
        scores[part] = values
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        if one in (3, 17) or other in (3, 17):
            assert scores[number] == -np.inf
        else:
            assert scores[number] == pytest.approx(templates[one] @ templates[other], abs=1e-6)


def test_sparse_lists_give_the_same_as_dense_ones() -> None:
    templates = unit_rows(3_000, 16, seed=2)
    rng = np.random.default_rng(3)
    left, right = rng.integers(0, 3_000, 500), rng.integers(0, 3_000, 500)
    ((_, scattered),) = score_pairs(templates, left, right)
    whole = (templates @ templates.T)[left, right]
    np.testing.assert_allclose(scattered, whole, atol=1e-6)


def test_row_numbers_outside_of_the_templates_are_refused() -> None:
    templates = unit_rows(4, 3, seed=0)
    with pytest.raises(
        EvaluationError, match=r"right: expected one row number below 4 .* got 1 rows"
    ):
        list(score_pairs(templates, np.array([0]), np.array([4])))
    with pytest.raises(EvaluationError, match="left: expected one row number"):
        list(score_pairs(templates, np.array([-1]), np.array([1])))
    with pytest.raises(EvaluationError, match="for each of 1 pairs, got 2 rows"):
        list(score_pairs(templates, np.array([0]), np.array([1, 2])))
    with pytest.raises(EvaluationError, match=r"'present' has shape \(3,\) for 4"):
        list(score_pairs(templates, np.array([0]), np.array([1]), present=np.ones(3, dtype=bool)))
    with pytest.raises(EvaluationError, match="expected templates \\(T, D\\)"):
        list(score_pairs(templates[0], np.array([0]), np.array([1])))


@pytest.mark.parametrize("block", [1, 10, 64, 10_000])
def test_all_pairs_are_every_query_with_every_gallery_template(block: int) -> None:
    query, gallery = unit_rows(12, 6, seed=4), unit_rows(17, 6, seed=5)
    rng = np.random.default_rng(6)
    query_labels, gallery_labels = rng.integers(0, 4, 12), rng.integers(1, 6, 17)
    faceless = np.arange(17) != 2
    blocks = list(
        all_pairs(
            query,
            gallery,
            query_labels=query_labels,
            gallery_labels=gallery_labels,
            gallery_present=faceless,
            query_present=np.arange(12) != 0,
            block=block,
        )
    )
    assert all(len(scores) <= block for scores, _ in blocks)
    matrix = query @ gallery.T
    matrix[:, 2] = -np.inf
    matrix[0] = -np.inf
    same = query_labels[:, None] == gallery_labels
    count = count_impostors(query_labels, gallery_labels)
    assert count == (~same).sum()
    far = [0.0, 0.05, 0.2]
    result = verify(iter(blocks), far=far, n_impostor=count)
    np.testing.assert_allclose(result.tar, tar_at_far(matrix[same], matrix[~same], far=far))
    assert result.n_genuine == same.sum()
