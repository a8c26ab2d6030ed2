"""The mutual likelihood score against loops over dimensions, and as a re-scorer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from midspan.errors import VectorError
from midspan.evaluation.likelihood import mutual_likelihood, rescore
from midspan.spaces import Embeddings, Space

DIM, SLICES = 6, 3


def drawn(count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, rng.uniform(0.05, 0.5, size=(count, SLICES)).astype(np.float32)


def embeddings(count: int, *, seed: int) -> Embeddings:
    vectors, variance = drawn(count, seed=seed)
    ids = np.array([f"{seed}-{n}" for n in range(count)])
    return Embeddings(ids, vectors, Space("s", DIM), {"variance": variance})


def per_dimension(f1: np.ndarray, s1: np.ndarray, f2: np.ndarray, s2: np.ndarray) -> float:
    """PFE's score with one σ² for each dimension, without its constant."""
    total = 0.0
    for a, va, b, vb in zip(f1, s1, f2, s2, strict=True):
        both = float(va) + float(vb)
        total -= 0.5 * ((float(a) - float(b)) ** 2 / both + math.log(both))
    return total


def test_slices_are_dimensions_with_variance_repeated() -> None:
    first, v1 = drawn(5, seed=0)
    second, v2 = drawn(5, seed=1)
    scores = mutual_likelihood(first, v1, second, v2)
    for i in range(5):
        wide = [np.repeat(v[i], DIM // SLICES) for v in (v1, v2)]
        assert scores[i] == pytest.approx(per_dimension(first[i], wide[0], second[i], wide[1]))
    square = mutual_likelihood(first[:, None], v1[:, None], second[None], v2[None])
    np.testing.assert_allclose(np.diag(square), scores)
    np.testing.assert_allclose(square, mutual_likelihood(second, v2, first[:, None], v1[:, None]))


def test_equal_variances_rank_as_euclidean_distance() -> None:
    first, _ = drawn(4, seed=2)
    second, _ = drawn(30, seed=3)
    same1, same2 = np.full((4, 1, SLICES), 0.2), np.full((30, SLICES), 0.3)
    scores = mutual_likelihood(first[:, None], same1, second, same2)
    distance = np.square(first[:, None].astype(float) - second).sum(-1)
    np.testing.assert_array_equal(np.argsort(-scores), np.argsort(distance))


def test_rescoring_orders_what_a_search_found() -> None:
    query, gallery = embeddings(7, seed=4), embeddings(40, seed=5)
    rows = np.argsort(-(query.vectors @ gallery.vectors.T), axis=1)[:, :10]
    ordered, scores = rescore(query, gallery, rows)
    assert (np.diff(scores, axis=1) <= 0).all()
    for q in range(7):
        assert set(ordered[q]) == set(rows[q])
        for row, score in zip(ordered[q], scores[q], strict=True):
            expected = mutual_likelihood(
                query.vectors[q],
                query.columns["variance"][q],
                gallery.vectors[row],
                gallery.columns["variance"][row],
            )
            assert score == pytest.approx(float(expected))
    assert not np.array_equal(ordered, rows)  # variances matter


def test_nothing_found_stays_last() -> None:
    query, gallery = embeddings(2, seed=4), embeddings(5, seed=5)
    ordered, scores = rescore(query, gallery, np.array([[-1, 2, 3], [4, -1, -1]]))
    assert ordered[0, 2] == -1
    assert list(ordered[1]) == [4, -1, -1]
    assert scores[0, 2] == -np.inf


def test_what_does_not_fit_is_told() -> None:
    query, gallery = embeddings(2, seed=4), embeddings(5, seed=5)
    plain = Embeddings(gallery.ids, gallery.vectors, gallery.space)
    with pytest.raises(VectorError, match="the gallery has no column 'variance'"):
        rescore(query, plain, np.zeros((2, 1), dtype=np.int64))
    with pytest.raises(VectorError, match="reach to 9 of 5"):
        rescore(query, gallery, np.full((2, 1), 9))
    with pytest.raises(VectorError, match=r"expected rows \(Q, k\)"):
        rescore(query, gallery, np.zeros((3, 1), dtype=np.int64))
    vectors, variance = drawn(2, seed=0)
    with pytest.raises(VectorError, match="above 0"):
        mutual_likelihood(vectors, variance - 10, vectors, variance)
    with pytest.raises(VectorError, match="one K that divides it"):
        mutual_likelihood(vectors, variance[:, :2], vectors, variance)
