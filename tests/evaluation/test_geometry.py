"""Shape of a space: by hand, by slow reference, by invariance."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import EvaluationError, SpaceMismatch, VectorError
from midspan.evaluation import intra_class_distance, learner_correlation, pairwise_distance


def test_intra_class_distance_by_loops() -> None:
    rng = np.random.default_rng(0)
    vectors, labels = rng.standard_normal((40, 5)), np.arange(40) % 6
    unit = [v / np.linalg.norm(v) for v in vectors]
    spreads = []
    for label in range(6):
        members = [u for u, own in zip(unit, labels, strict=True) if own == label]
        centre = sum(members) / len(members)
        centre = centre / np.linalg.norm(centre)
        spreads.append(np.mean([np.sum((u - centre) ** 2) for u in members]))
    assert intra_class_distance(vectors, labels) == pytest.approx(np.mean(spreads))
    some = intra_class_distance(vectors, labels, n_classes=2, seed=1)
    pairs = [np.mean([a, b]) for i, a in enumerate(spreads) for b in spreads[i + 1 :]]
    assert any(some == pytest.approx(pair) for pair in pairs)


def test_one_direction_per_class_has_no_spread() -> None:
    assert intra_class_distance(np.array([[1, 0], [3, 0], [0, 2]]), np.array(["a", "a", "b"])) == (
        pytest.approx(0.0)
    )


def test_pairwise_distance_is_two_minus_two_cosines() -> None:
    first, second = np.array([[1.0, 0], [0, 2.0]]), np.array([[0, 5.0], [0, 1.0]])
    assert pairwise_distance(first, second) == pytest.approx(1.0)  # cosines 0 and 1
    assert pairwise_distance(first, -first) == pytest.approx(4.0)
    assert pairwise_distance(first, 7 * first) == pytest.approx(0.0)


def test_learner_correlation() -> None:
    rng = np.random.default_rng(1)
    one = rng.standard_normal((5000, 3))
    assert learner_correlation(np.concatenate([one, rng.standard_normal((5000, 3))], axis=1),
                               n_learners=2) < 0.02  # fmt: skip
    single = rng.standard_normal((500, 1))
    assert learner_correlation(np.hstack([single, -2 * single + 3]), n_learners=2) == (
        pytest.approx(1.0)
    )
    three = rng.standard_normal((50, 6))
    pearson = np.abs(np.corrcoef(three.T))
    different = [pearson[i, j] for i in range(6) for j in range(6) if i // 2 != j // 2]
    assert learner_correlation(three, n_learners=3) == pytest.approx(np.mean(different))
    constant = np.concatenate([three, np.full((50, 2), 0.1)], axis=1)
    kept = [pearson[i, j] for i in range(6) for j in range(6) if i // 4 != j // 4]
    assert learner_correlation(constant, n_learners=2) == pytest.approx(np.mean(kept))


def test_refusals() -> None:
    ones = np.ones((3, 4))
    with pytest.raises(SpaceMismatch, match="4-d and 2-d"):
        pairwise_distance(ones, np.ones((3, 2)))
    with pytest.raises(EvaluationError, match="3 and 2 vectors"):
        pairwise_distance(ones, ones[:2])
    with pytest.raises(VectorError, match="row 0 has length zero"):
        pairwise_distance(0 * ones, ones)
    with pytest.raises(VectorError, match="NaN"):
        intra_class_distance(ones * np.nan, np.zeros(3))
    with pytest.raises(EvaluationError, match=r"\(2,\) labels for 3 vectors"):
        intra_class_distance(ones, np.zeros(2))
    with pytest.raises(EvaluationError, match="there are 1 classes"):
        intra_class_distance(ones, np.zeros(3), n_classes=8)
    with pytest.raises(EvaluationError, match="cancel out"):
        intra_class_distance(np.array([[1.0, 0], [-1.0, 0]]), np.zeros(2))
    with pytest.raises(EvaluationError, match="got 3 for 4 dimensions"):
        learner_correlation(ones, n_learners=3)
    with pytest.raises(EvaluationError, match="coordinates that vary"):
        learner_correlation(ones, n_learners=2)
    with pytest.raises(EvaluationError, match="at least 2 vectors, all finite, got 1"):
        learner_correlation(ones[:1], n_learners=2)
