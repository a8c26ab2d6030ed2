"""Slices of an embedding, judged one by one and together."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import EvaluationError
from midspan.evaluation.learners import judge_learners, specialities
from midspan.spaces import Embeddings, Space


def two_learners() -> Embeddings:
    """Slice 0 tells the first 40 items apart by class, slice 1 the other 40; noise elsewhere."""
    rng = np.random.default_rng(0)
    labels = np.arange(80) % 8
    good = np.eye(8)[labels] * 4
    first, second = rng.normal(size=(80, 8)), rng.normal(size=(80, 8))
    first[:40] += good[:40]
    second[40:] += good[40:]
    labels = labels + 8 * (np.arange(80) >= 40)
    vectors = np.concatenate([first, second], axis=1).astype(np.float32)
    ids = np.arange(80).astype(np.str_)
    return Embeddings(ids, vectors, Space("two", 16), {"labels": labels})


def slow_hits(vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    hits = []
    for i, vector in enumerate(vectors):
        best, label = -np.inf, None
        for j, other in enumerate(vectors):
            score = vector @ other / (np.linalg.norm(vector) * np.linalg.norm(other))
            if i != j and score > best:
                best, label = score, labels[j]
        hits.append(float(label == labels[i]))
    return np.array(hits)


def test_each_alone_and_the_first_together() -> None:
    items = two_learners()
    labels = items.columns["labels"]
    learners = judge_learners(items, count=2)
    for k in range(2):
        expected = slow_hits(items.vectors[:, 8 * k : 8 * k + 8], labels)
        np.testing.assert_array_equal(learners.hits[k], expected)
        assert learners.alone[k] == pytest.approx(expected.mean())
    assert learners.together[0] == learners.alone[0]
    cut = items.vectors.reshape(80, 2, 8)
    cut = cut / np.linalg.norm(cut, axis=2, keepdims=True)
    assert learners.together[1] == pytest.approx(slow_hits(cut.reshape(80, 16), labels).mean())


def test_what_a_learner_is_good_at() -> None:
    learners = judge_learners(two_learners(), count=2)
    rows = specialities(learners, learner=1, limit=10)
    assert len(rows) == 10
    assert (learners.hits[1][rows] == 1).all()
    assert (learners.hits[0][rows] == 0).all()
    assert (rows >= 40).all()


def test_alike_slices_correlate_and_one_slice_has_no_other() -> None:
    items = two_learners()
    doubled = Embeddings(
        items.ids,
        np.tile(items.vectors[:, :8], 2),
        Space("twice", 16),
        dict(items.columns),
    )
    assert judge_learners(doubled, count=2).correlation > 2 * (
        judge_learners(items, count=2).correlation
    )
    assert np.isnan(judge_learners(items, count=1).correlation)


def test_dims_that_cannot_be_cut() -> None:
    with pytest.raises(EvaluationError, match="16 dims cannot be cut into 3 equal slices"):
        judge_learners(two_learners(), count=3)
