"""Several views of an item become one vector."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import VectorError
from midspan.evaluation.views import first_views, fuse_views
from midspan.spaces import Column, Embeddings, Space

GROUPS = np.array(["b", "a", "b", "b", "a"])


def views(**columns: Column) -> Embeddings:
    vectors = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Embeddings(np.array(list("vwxyz")), vectors, Space("s", 4), columns)


def test_without_variances_it_is_the_mean() -> None:
    fused = fuse_views(views(labels=np.array([1, 7, 1, 1, 7]), frame=np.arange(5)), GROUPS)
    assert fused.ids.tolist() == ["a", "b"]
    for item, rows in (("a", [1, 4]), ("b", [0, 2, 3])):
        mean = views().vectors[rows].mean(axis=0)
        vector = fused.take([item]).vectors[0]
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
    assert fused.columns["labels"].tolist() == ["7", "1"]
    assert fused.columns["views"].tolist() == [2, 3]
    assert "frame" not in fused.columns  # views disagree, so it says nothing of the item


def test_views_count_by_their_variance() -> None:
    variance = np.array([[0.1, 0.4], [0.2, 0.2], [0.1, 0.1], [1e9, 1e9], [0.2, 0.2]])
    fused = fuse_views(views(variance=variance.astype(np.float32)), GROUPS)
    slices = views().vectors.astype(float).reshape(5, 2, 2)
    expected = []
    for k in range(2):
        total = sum(slices[row, k] / variance[row, k] for row in (0, 2, 3))
        expected.append(total / np.linalg.norm(total) / np.sqrt(2))
    np.testing.assert_allclose(fused.vectors[1], np.concatenate(expected), atol=1e-6)
    np.testing.assert_allclose(fused.columns["variance"], [[0.2, 0.2], [0.1, 0.1]])
    # A view that nobody trusts is as good as gone.
    kept = [0, 1, 2, 4]
    without = fuse_views(views(variance=variance.astype(np.float32))[kept], GROUPS[kept])
    np.testing.assert_allclose(fused.vectors, without.vectors, atol=1e-6)


def test_equal_variances_are_the_mean_of_each_slice() -> None:
    fused = fuse_views(views(variance=np.full((5, 2), 0.3, dtype=np.float32)), GROUPS)
    mean = views().vectors[[1, 4]].mean(axis=0).reshape(2, 2)
    expected = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).ravel() / np.sqrt(2)
    np.testing.assert_allclose(fused.vectors[0], expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_confidence_is_the_mean_of_the_views(shape: tuple[int, ...]) -> None:
    confidence = np.random.default_rng(1).uniform(1, 9, size=shape).astype(np.float32)
    fused = fuse_views(views(confidence=confidence), GROUPS)
    np.testing.assert_allclose(fused.columns["confidence"][1], confidence[[0, 2, 3]].mean(axis=0))


def test_rows_of_the_first_views() -> None:
    assert first_views(GROUPS).tolist() == [1, 0]


def test_groups_must_fit() -> None:
    with pytest.raises(VectorError, match=r"each of 5 vectors.*groups of shape \(2,\)"):
        fuse_views(views(), np.array(["a", "b"]))
