from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import rejection_curve, risk_coverage
from midspan.errors import EvaluationError, SpaceMismatch
from tests.bridges.worlds import embeddings


def test_a_perfect_doubt_removes_the_worst_first() -> None:
    errors = np.arange(100) / 100
    curve = risk_coverage(errors, errors, coverages=(1.0, 0.5, 0.1))
    assert curve.risk.tolist() == pytest.approx([0.495, 0.245, 0.045])
    np.testing.assert_allclose(curve.random_risk, 0.495, atol=0.02)
    assert curve.area < -0.1
    assert (curve.random_low <= curve.random_risk).all()
    assert (curve.random_risk <= curve.random_high).all()


def test_a_wrong_doubt_is_worse_than_random() -> None:
    errors = np.arange(100) / 100
    assert risk_coverage(errors, -errors, coverages=(0.5,)).area > 0.2


def test_everything_kept_is_the_same_for_both() -> None:
    errors = np.random.default_rng(0).random(50)
    curve = risk_coverage(errors, errors, coverages=(1.0,))
    assert curve.risk[0] == pytest.approx(curve.random_risk[0]) == pytest.approx(errors.mean())


def test_gallery_rejection_by_hand() -> None:
    """Two queries; the gallery's doubtful item d is nearest to q0 and of the wrong class."""
    queries = embeddings(np.array([[1.0, 0.0], [0.0, 1.0]]), "s", labels=[0, 1], prefix="q")
    gallery = embeddings(
        np.array([[0.9, 0.1], [0.1, 0.9], [1.0, 0.0], [0.2, 0.9]]),
        "s",
        labels=[0, 1, 1, 1],
        prefix="g",
    ).with_columns({"uncertainty": np.array([0.1, 0.2, 0.9, 0.3])})
    curve = rejection_curve(queries, gallery, coverages=(1.0, 0.75, 0.5, 0.25))
    # all: q0 meets d first → wrong. three: right. two {g0, g1}: right. one {g0}: q1 has no mate.
    assert curve.all_queries.risk.tolist() == [0.5, 0.0, 0.0, 0.5]
    assert curve.answered.risk.tolist() == [0.5, 0.0, 0.0, 0.0]


def test_an_item_is_no_answer_to_itself() -> None:
    both = embeddings(np.eye(3)[[0, 0, 1]] + 0.01, "s", labels=[0, 0, 1]).with_columns(
        {"uncertainty": np.zeros(3)}
    )
    curve = rejection_curve(both, both, coverages=(1.0,))
    assert curve.answered.risk.tolist() == [0.0]  # the third has no mate but itself
    assert curve.all_queries.risk[0] == pytest.approx(1 / 3)


def test_what_it_refuses() -> None:
    rows = embeddings(np.eye(3), "s", labels=[0, 1, 2])
    with pytest.raises(EvaluationError, match="no column 'uncertainty'"):
        rejection_curve(rows, rows)
    with pytest.raises(EvaluationError, match="needs a 'labels' column"):
        rejection_curve(embeddings(np.eye(3), "s"), rows)
    with pytest.raises(SpaceMismatch):
        rejection_curve(rows, embeddings(np.eye(3), "t", labels=[0, 1, 2]))
    with pytest.raises(EvaluationError, match=r"1 of 2 uncertainties are NaN"):
        risk_coverage(np.ones(2), np.array([0.1, np.nan]))
    with pytest.raises(EvaluationError, match=r"share in \(0, 1\], got 0"):
        risk_coverage(np.ones(2), np.ones(2), coverages=(0.0,))
