"""Ranking metrics against slow references on whole rankings, and published micro-examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midspan.errors import EvaluationError, SpaceMismatch, VectorError
from midspan.evaluation import counting
from midspan.evaluation.ranking import (
    METRICS,
    NEVER,
    average_precision,
    average_precision_trapezoid,
    cmc,
    map_at_k,
    map_at_r,
    mp_at_k,
    parse_metric,
    precision_at_k,
    r_precision,
    recall_at_k,
    relevant_ranks,
)
from midspan.spaces import Embeddings, FloatArray, IntArray
from tests.evaluation.sets import embeddings

# ---- references: one query, its ranking as a list of 0 and 1, n relevant items ------------------

Ranking = Sequence[int]


def slow_precision(ranking: Ranking, k: int) -> float:
    return sum(ranking[:k]) / k


def slow_map(ranking: Ranking, n: int) -> float:
    return sum(slow_precision(ranking, i + 1) for i, hit in enumerate(ranking) if hit) / n


def slow_map_trapezoid(ranking: Ranking, n: int) -> float:
    """Sum of trapezoids between the points of the precision-recall curve."""
    total, hits = 0.0, 0
    for i, hit in enumerate(ranking):
        if hit:
            before = hits / i if i else 1.0
            hits += 1
            total += (before + hits / (i + 1)) / 2 / n
    return total


def slow_map_at_k(ranking: Ranking, n: int, k: int) -> float:
    precisions = [slow_precision(ranking, i + 1) for i, hit in enumerate(ranking[:k]) if hit]
    return sum(precisions) / min(n, k)


def slow_mp_at_k(ranking: Ranking, n: int, k: int) -> float:
    last = max((i + 1 for i, hit in enumerate(ranking) if hit), default=1)
    return slow_precision(ranking, min(k, last))


REFERENCES: dict[str, Callable[[Ranking, int], float]] = {
    "map": slow_map,
    "map_trapezoid": slow_map_trapezoid,
    "map@3": lambda ranking, n: slow_map_at_k(ranking, n, 3),
    "map@100": lambda ranking, n: slow_map_at_k(ranking, n, 100),
    "map@r": lambda ranking, n: slow_map_at_k(ranking, n, n),
    "r_precision": slow_precision,
    "precision@1": lambda ranking, n: slow_precision(ranking, 1),
    "precision@50": lambda ranking, n: slow_precision(ranking, 50),
    "mp@4": lambda ranking, n: slow_mp_at_k(ranking, n, 4),
    "mp@99": lambda ranking, n: slow_mp_at_k(ranking, n, 99),
    "recall@1": lambda ranking, n: float(any(ranking[:1])),
    "recall@5": lambda ranking, n: float(any(ranking[:5])),
    "cmc@2": lambda ranking, n: float(any(ranking[:2])),
}


def slow_rankings(
    scores: npt.NDArray[Any],
    relevant: Sequence[set[int]],
    ignored: Sequence[set[int]],
    places: npt.NDArray[Any],
) -> list[tuple[Ranking, int]]:
    """Sort everything, take out what is ignored."""
    rankings: list[tuple[Ranking, int]] = []
    for line, right, junk in zip(scores, relevant, ignored, strict=True):
        order = sorted(range(len(line)), key=lambda g: (-line[g], places[g]))
        ranking = [int(g in right) for g in order if g not in junk]
        rankings.append((ranking, len(right - junk)))
    return rankings


vectors = st.lists(st.tuples(*[st.integers(-1, 1)] * 3).filter(any), min_size=1, max_size=25).map(
    lambda rows: np.array(rows, dtype=np.float32)
)


@settings(deadline=None, max_examples=50)
@given(query=vectors, gallery=vectors, data=st.data())
def test_every_metric_equals_its_reference(
    query: FloatArray, gallery: FloatArray, data: st.DataObject
) -> None:
    """Ties, junk, own rows, same codes and queries without any relevant item."""
    count = len(query)
    rows = st.integers(0, len(gallery) - 1)
    relevant = data.draw(st.lists(st.sets(rows), min_size=count, max_size=count))
    junk = data.draw(st.lists(st.sets(rows, max_size=5), min_size=count, max_size=count))
    own = data.draw(st.lists(rows | st.just(-1), min_size=count, max_size=count))
    codes = data.draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count))
    gallery_codes = data.draw(
        st.lists(st.integers(-1, 3), min_size=len(gallery), max_size=len(gallery))
    )
    ids = data.draw(st.permutations([f"id-{i}" for i in range(len(gallery))]))
    by_id = data.draw(st.booleans())
    searched: Embeddings | FloatArray = embeddings(gallery, ids=ids) if by_id else gallery
    with (
        mock.patch.object(counting, "BLOCK", data.draw(st.sampled_from([8, 16, 8192]))),
        mock.patch.object(counting, "COMPARE_UP_TO", data.draw(st.sampled_from([0, 40]))),
        mock.patch.object(counting, "PER_LOOK_UP", data.draw(st.sampled_from([0, 1, 32]))),
        mock.patch.object(counting, "FEW_TIES", data.draw(st.sampled_from([0, 64]))),
        mock.patch.object(counting, "MASK_BYTES", data.draw(st.sampled_from([1, 2**19]))),
    ):
        ranks, n = relevant_ranks(
            query, searched, metric="dot",
            relevant=[sorted(some) for some in relevant],
            ignore=[np.array(sorted(some), dtype=int) for some in junk],
            exclude=np.array(own),
            ignore_codes=(np.array(codes), np.array(gallery_codes)),
        )  # fmt: skip
    ignored = [
        junk[q] | {own[q]} | {g for g, c in enumerate(gallery_codes) if c == codes[q] >= 0}
        for q in range(count)
    ]
    places = np.argsort(np.argsort(ids)) if by_id else np.arange(len(gallery))
    exact = query.astype(np.float64) @ gallery.astype(np.float64).T
    rankings = slow_rankings(exact, relevant, ignored, places)
    for name, reference in REFERENCES.items():
        expected = [reference(ranking, m) if m else np.nan for ranking, m in rankings]
        np.testing.assert_allclose(
            parse_metric(name).per_query(ranks, n), expected, rtol=1e-12, err_msg=name
        )
    assert n.tolist() == [m for _, m in rankings]


def test_ranks_over_many_columns_and_blocks() -> None:
    """More columns than a block, more relevant items than are compared one by one."""
    rng = np.random.default_rng(0)
    gallery = rng.integers(-3, 4, (20_000, 4)).astype(np.float32)
    query = rng.integers(-3, 4, (7, 4)).astype(np.float32)
    relevant = [rng.choice(20_000, size, replace=False) for size in (0, 1, 5, 30, 60, 200, 9)]
    scores = query @ gallery.T  # exact: whole numbers
    ranks, n = relevant_ranks(query, gallery, relevant=relevant, metric="dot")
    for q, rows in enumerate(relevant):
        order = np.argsort(-scores[q], kind="stable")
        expected = np.sort(np.argsort(order)[rows])
        assert ranks[q, : n[q]].tolist() == expected.tolist()
        assert (ranks[q, n[q] :] == NEVER).all()


def test_look_ups_do_not_grow_with_the_gallery_and_the_relevant_items() -> None:
    """A line with twice the columns and twice the items to rank is looked through as often."""
    rng = np.random.default_rng(0)
    passes = []
    for size in (50_000, 100_000, 200_000):
        scores = rng.standard_normal((1, size), dtype=np.float32)
        columns = rng.choice(size, (1, size // 50), replace=False)
        wrapped = mock.Mock(wraps=counting.before_block)
        with mock.patch.object(counting, "before_block", wrapped):
            ranks = counting.ranks_of(scores, scores[:, columns[0]], columns)
        assert (ranks == np.argsort(np.argsort(-scores, kind="stable"))[0][columns]).all()
        passes.append(wrapped.call_count)
    assert passes == [2, 2, 2]


def test_doubled_rows_keep_the_order_of_rows_in_real_vectors() -> None:
    rng = np.random.default_rng(1)
    gallery = rng.standard_normal((300, 67)).astype(np.float32)
    copies = np.sort(rng.choice(300, 120, replace=False))
    gallery[copies] = gallery[copies[0]]
    ranks, _ = relevant_ranks(gallery[copies[:3]], gallery, relevant=[copies] * 3)
    assert ranks.tolist() == [list(range(120))] * 3


# ---- published micro-examples -------------------------------------------------------------------


def ranked(ranking: Sequence[int], right: set[int], junk: set[int]) -> tuple[IntArray, IntArray]:
    kept = [item for item in ranking if item not in junk]
    ranks = [place for place, item in enumerate(kept) if item in right]
    return np.array([ranks]), np.array([len(right)])


@pytest.mark.parametrize(
    ("right", "junk", "area", "precisions"),
    [
        ({1, 5}, {7, 9, 3}, 0.708333, (1, 0.5, 0.5)),  # easy
        ({1, 5, 3}, {7, 9}, 0.711111, (1, 0.6, 0.6)),  # medium
        ({3}, {7, 9, 1, 5}, 0.25, (0, 0.5, 0.5)),  # hard
    ],
)
def test_revisited_oxford_micro_example(
    right: set[int], junk: set[int], area: float, precisions: tuple[float, ...]
) -> None:
    ranks, n = ranked([7, 1, 9, 2, 3, 4, 5, 6, 8, 0], right, junk)
    assert average_precision_trapezoid(ranks, n)[0] == pytest.approx(area, abs=1e-6)
    for k, expected in zip((1, 5, 10), precisions, strict=True):
        assert mp_at_k(ranks, n, k=k)[0] == pytest.approx(expected)


def test_landmarks_micro_example() -> None:
    """[a, x, b] with a, b and c right: .5556; c is not found but counts."""
    assert map_at_k(np.array([[0, 2, NEVER]]), np.array([3]), k=100)[0] == pytest.approx(5 / 9)
    # [a, a, b]: the second a takes a rank and scores nothing
    assert map_at_k(np.array([[0, 2]]), np.array([2]), k=100)[0] == pytest.approx(5 / 6)


def test_map_at_r_micro_example() -> None:
    ranks, n = np.array([[0, 2, NEVER]]), np.array([3])
    assert map_at_r(ranks, n)[0] == pytest.approx(5 / 9)
    assert r_precision(ranks, n)[0] == pytest.approx(2 / 3)


def test_plain_and_trapezoid_are_two_metrics() -> None:
    ranks, n = np.array([[1]]), np.array([1])
    assert average_precision(ranks, n)[0] == 0.5
    assert average_precision_trapezoid(ranks, n)[0] == 0.25


def test_a_perfect_ranking_scores_one_everywhere_and_nothing_relevant_is_nan() -> None:
    ranks, n = np.array([[0, 1, 2], [NEVER] * 3]), np.array([3, 0])
    for name in ("map", "map_trapezoid", "map@3", "map@r", "r_precision", "precision@3", "mp@9"):
        values = parse_metric(name).per_query(ranks, n)
        assert values[0] == 1.0, name
        assert np.isnan(values[1]), name
    no_columns = np.empty((2, 0), dtype=np.int64), np.zeros(2, dtype=np.int64)
    for name in REFERENCES:
        assert np.isnan(parse_metric(name).per_query(*no_columns)).all()


def test_relevant_items_that_are_not_in_the_gallery_count_in_n() -> None:
    ranks, n = np.array([[NEVER], [0]]), np.array([2, 2])
    assert average_precision(ranks, n).tolist() == [0.0, 0.5]
    assert recall_at_k(ranks, n, k=5).tolist() == [0.0, 1.0]


def test_cmc_is_recall_at_every_k() -> None:
    ranks, n = np.array([[1, 2], [NEVER, NEVER], [3, NEVER]]), np.array([2, 0, 1])
    curve = cmc(ranks, n, most=4)
    for k in range(1, 5):
        np.testing.assert_array_equal(curve[:, k - 1], recall_at_k(ranks, n, k=k))


@pytest.mark.parametrize("function", [map_at_k, precision_at_k, mp_at_k, recall_at_k])
@pytest.mark.parametrize("k", [0, -3, 1.0, True])
def test_k_must_be_at_least_one(function: Any, k: Any) -> None:
    with pytest.raises(EvaluationError, match="at least 1"):
        function(np.array([[0]]), np.array([1]), k=k)


# ---- names --------------------------------------------------------------------------------------


def test_every_name_of_the_table_is_understood() -> None:
    for name in METRICS:
        if name != "nmi":
            full = name.replace("@k", "@7")
            assert parse_metric(full).name == full
            assert parse_metric(full).per_query(np.array([[0]]), np.array([1])).shape == (1,)
    assert parse_metric(" Recall@05 ").name == "recall@5"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("recal@5", "did you mean 'recall@5'"),
        ("mapp", "did you mean 'map'"),
        ("r_precison", "did you mean 'r_precision'"),
        ("recall", "recall@k requires a whole number"),
        ("recall@0", "recall@k requires a whole number"),
        ("map@1.5", "map@k requires a whole number"),
        ("accuracy", "known: map, map_trapezoid"),
        ("nmi", "evaluation.nmi"),
        ("", "known: map"),
    ],
)
def test_unknown_names_get_advice(name: str, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        parse_metric(name)


# ---- bad input ----------------------------------------------------------------------------------


def test_relevant_ranks_refuses_what_it_cannot_rank() -> None:
    ones = np.ones((2, 3))
    with pytest.raises(EvaluationError, match="1 lists for 2 queries"):
        relevant_ranks(ones, ones, relevant=[[0]])
    with pytest.raises(EvaluationError, match="relevant lists name gallery row 2"):
        relevant_ranks(ones, ones, relevant=[[0], [2]])
    with pytest.raises(VectorError, match="3 dimensions, gallery 2"):
        relevant_ranks(ones, np.ones((2, 2)), relevant=[[0], [1]])
    with pytest.raises(VectorError, match="gallery row 1 has length zero"):
        relevant_ranks(ones, np.array([[1.0, 0, 0], [0, 0, 0]]), relevant=[[0], [1]])
    with pytest.raises(VectorError, match="query row 0 has NaN"):
        relevant_ranks(ones * np.nan, ones, relevant=[[0], [1]])
    with pytest.raises(SpaceMismatch, match="no compatibility"):
        relevant_ranks(
            embeddings(ones, name="new"), embeddings(ones, name="old"), relevant=[[0], [1]]
        )


def test_one_query_and_one_item() -> None:
    ranks, n = relevant_ranks(np.ones((1, 2)), np.ones((1, 2)), relevant=[[0]])
    assert (ranks.tolist(), n.tolist()) == ([[0]], [1])
    ranks, n = relevant_ranks(np.ones((1, 2)), np.ones((1, 2)), relevant=[[]])
    assert (ranks.shape, n.tolist()) == ((1, 0), [0])
