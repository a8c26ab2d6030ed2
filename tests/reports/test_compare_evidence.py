"""Curve, ROC and matrix beside the scores: their ends are the scores themselves."""

from __future__ import annotations

import numpy as np
import pytest

from midspan import Embeddings, Space
from midspan.evaluation import compare
from midspan.reports import evidence

LABELS = np.repeat(np.arange(10), 6)


def cloud(
    seed: int, *, noise: float, name: str, dim: int = 8, metric: str = "cosine"
) -> Embeddings:
    centres = np.random.default_rng(5).normal(size=(10, dim))
    jitter = np.random.default_rng(seed).normal(size=(60, dim))
    return Embeddings(
        ids=np.array([f"i{n:02d}" for n in range(60)]),
        vectors=(centres[LABELS] + noise * jitter).astype(np.float32),
        space=Space(name, dim, metric=metric),  # type: ignore[arg-type]
        columns={"labels": LABELS},
    )


def test_evidence_ends_of_curve_and_matrix_equal_the_scores() -> None:
    old, new = cloud(0, noise=1.0, name="old"), cloud(1, noise=0.5, name="new")
    upper = cloud(2, noise=0.4, name="upper")
    result = compare(old=old, new=new, upper=upper, metric="map")
    shown = evidence(result, new=new, upper=upper)
    (curve,) = shown.curves.values()
    assert curve.values[0] == pytest.approx(result.cross)
    assert curve.values[-1] == pytest.approx(result.new_self)
    assert shown.matrix is not None
    assert list(shown.matrix.encoders) == ["old", "new", "upper"]
    assert shown.matrix.values[0, 0] == pytest.approx(result.old_self)
    assert shown.matrix.values[1, 0] == pytest.approx(result.cross)
    assert shown.matrix.values[1, 1] == pytest.approx(result.new_self)
    assert shown.matrix.values[2, 2] == pytest.approx(result.upper_self)


@pytest.mark.parametrize("metric", ["cosine", "l2", "dot"])
def test_evidence_roc_equals_counted_pairs(metric: str) -> None:
    old = cloud(0, noise=1.0, name="old", metric=metric)
    new = cloud(1, noise=0.5, name="new", metric=metric)
    roc = evidence(compare(old=old, new=new), new=new).rocs["cross"]
    pairs = [(i, j) for i in range(60) for j in range(60) if i != j]

    def score(i: int, j: int) -> float:
        a, b = new.vectors[i].astype(float), old.vectors[j].astype(float)
        if metric == "l2":
            return -float(((a - b) ** 2).sum())
        dot = float(a @ b)
        return dot if metric == "dot" else dot / float(np.linalg.norm(a) * np.linalg.norm(b))

    genuine = [score(i, j) for i, j in pairs if LABELS[i] == LABELS[j]]
    impostor = [score(i, j) for i, j in pairs if LABELS[i] != LABELS[j]]
    middle = len(roc.far) // 2
    threshold = float(roc.thresholds[middle])
    near = 1e-4 * max(1.0, abs(threshold))  # float32 against float64 at the threshold itself
    assert np.mean([s > threshold + near for s in impostor]) <= roc.far[middle] + 1e-9
    assert np.mean([s > threshold - near for s in impostor]) >= roc.far[middle] - 1e-9
    assert np.mean([s > threshold + near for s in genuine]) <= roc.tar[middle] + 1e-9
    assert np.mean([s > threshold - near for s in genuine]) >= roc.tar[middle] - 1e-9


def test_evidence_other_dims_have_no_matrix_and_no_curve() -> None:
    class Pad:
        source = Space("old", 8)
        target = Space("new", 10)

        def transform(self, e: Embeddings) -> Embeddings:
            return Embeddings(
                e.ids, np.pad(e.vectors, ((0, 0), (0, 2))), self.target, dict(e.columns)
            )

    old, new = cloud(0, noise=1.0, name="old"), cloud(1, noise=0.5, name="new", dim=10)
    result = compare(old=old, new=new, bridge=Pad())
    shown = evidence(result, new=new)
    assert shown.matrix is None
    (curve,) = shown.curves.values()  # the mapped gallery lives in the new space
    assert curve.values[0] == pytest.approx(result.cross)
    assert curve.values[-1] == pytest.approx(result.new_self)
