"""NMI after k-means."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

from midspan.errors import EvaluationError, MissingDependency
from midspan.evaluation import nmi


def entropy(counts: Any) -> float:
    shares = np.asarray(counts, dtype=float).reshape(-1) / np.sum(counts)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def test_nmi_of_clusters_that_split_a_class() -> None:
    """Two far groups; the labels agree with them except for one item."""
    vectors = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    labels = np.array([0, 0, 1, 1, 1, 1])
    table = np.array([[2, 1], [0, 3]])  # clusters × labels
    by_cluster, by_label = entropy(table.sum(axis=1)), entropy(table.sum(axis=0))
    mutual = by_cluster + by_label - entropy(table)
    arithmetic = mutual / ((by_cluster + by_label) / 2)
    assert nmi(vectors, labels) == pytest.approx(arithmetic)
    assert nmi(vectors, labels) < mutual / np.sqrt(by_cluster * by_label)  # the older definition


def test_perfect_and_trivial_clusters() -> None:
    vectors = np.array([[0.0, 0], [0, 0], [5, 5], [5, 5]])
    assert nmi(vectors, np.array(["a", "a", "b", "b"])) == pytest.approx(1.0)
    assert nmi(vectors, np.zeros(4)) == 1.0  # one class, one cluster: nothing to tell apart
    assert nmi(np.zeros((3, 2)), np.arange(3)) == pytest.approx(0.0)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EvaluationError, match=r"\(1,\) labels for 2 vectors"):
        nmi(np.ones((2, 2)), np.zeros(1))
    with pytest.raises(EvaluationError, match="no vectors"):
        nmi(np.ones((0, 2)), np.zeros(0))
    with pytest.raises(EvaluationError, match="NaN"):
        nmi(np.full((2, 2), np.nan), np.arange(2))
    real_import = builtins.__import__

    def without_sklearn(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_sklearn)
    with pytest.raises(MissingDependency, match=r"midspan\[train\]"):
        nmi(np.ones((2, 2)), np.arange(2))
