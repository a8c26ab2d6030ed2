from __future__ import annotations

import numpy as np
import pytest

from midspan.errors import EvaluationError
from midspan.reports.projection import Projection, project
from midspan.spaces import FloatArray


def blobs(
    classes: int, each: int, *, dim: int = 16, seed: int = 0
) -> tuple[FloatArray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), each)
    vectors = centres[labels] + 0.1 * rng.normal(size=(len(labels), dim))
    return vectors.astype(np.float32), labels


def rotated(vectors: FloatArray, *, seed: int = 1) -> FloatArray:
    dim = vectors.shape[1]
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))
    turned: FloatArray = (vectors @ turn).astype(np.float32)
    return turned


def test_project_compatible_space_overlaps_the_old_one() -> None:
    old, labels = blobs(12, 10)
    rng = np.random.default_rng(3)
    near = (old + 0.05 * rng.normal(size=old.shape)).astype(np.float32)
    seen = project(old, {"near": near, "far": rotated(old)}, labels, classes=6, per_class=8)
    assert len(seen.labels) == 6
    assert len(seen.rows) == len(seen.classes) == len(seen.old) == 48
    moved = {name: np.linalg.norm(seen.old - points, axis=1) for name, points in seen.new.items()}
    assert moved["near"].max() < 0.1
    assert moved["far"].mean() > 5 * moved["near"].mean()
    assert seen.at_home("near") > 44
    assert seen.at_home("far") < 24


def test_project_rows_and_classes_follow_the_labels() -> None:
    old, labels = blobs(5, 7)
    names = np.array([f"klasse {label}" for label in labels])
    seen = project(old, {}, names, classes=3, per_class=4, seed=5)
    assert [seen.labels[c] for c in seen.classes] == names[seen.rows].tolist()
    assert len(set(seen.rows.tolist())) == 12


def test_project_coordinates_equal_principal_components_of_centres() -> None:
    old, labels = blobs(8, 5)
    seen = project(old, {}, labels, classes=8, per_class=5)
    unit = old / np.linalg.norm(old, axis=1, keepdims=True)
    centres = np.stack([unit[labels == c].mean(axis=0) for c in range(8)]).astype(np.float64)
    values, axes = np.linalg.eigh(np.cov(centres.T))
    expected = (unit[seen.rows] - centres.mean(axis=0)) @ axes[:, np.argsort(values)[::-1][:2]]
    assert np.allclose(np.abs(seen.old), np.abs(expected), atol=1e-5)


def test_project_chooses_distant_and_large_classes() -> None:
    angles = np.deg2rad([0, 3, 90, 93, 180, 270])
    centres = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    labels = np.repeat(np.arange(6), 4)
    old = centres[labels].astype(np.float32)
    chosen = project(old, {}, labels, classes=4).labels
    assert {angles[int(name)].round(1) for name in chosen} >= {3.1, 4.7}
    assert len({int(name) // 2 if int(name) < 4 else int(name) for name in chosen}) == 4
    # A class of one picture, however far away, does not take a place.
    lone = np.concatenate([old, [[5.0, 5.0]]]).astype(np.float32)
    assert "9" not in project(lone, {}, np.append(labels, 9), classes=4).labels


@pytest.mark.parametrize(("classes", "dim"), [(1, 8), (2, 8), (3, 2), (3, 1)])
def test_project_few_classes_or_dims_works(classes: int, dim: int) -> None:
    old, labels = blobs(classes, 6, dim=dim)
    seen = project(old, {"new": old}, labels)
    assert len(seen.labels) == classes
    assert np.isfinite(seen.old).all()
    assert np.array_equal(seen.old, seen.new["new"])
    if dim > 1:
        assert np.ptp(seen.old, axis=0).min() > 0


def test_project_equal_vectors_are_at_the_origin() -> None:
    seen = project(np.ones((4, 3), dtype=np.float32), {}, np.zeros(4))
    assert np.allclose(seen.old, 0)


def test_project_same_seed_is_equal() -> None:
    old, labels = blobs(5, 30)

    def rows(seed: int) -> tuple[int, ...]:
        return tuple(project(old, {}, labels, per_class=5, seed=seed).rows)

    assert rows(0) == rows(0)
    assert rows(0) != rows(1)


def test_project_other_dim_raises_evaluation_error() -> None:
    old, labels = blobs(3, 4)
    with pytest.raises(EvaluationError, match=r"wide vectors have shape \(12, 8\)"):
        project(old, {"wide": old[:, :8]}, labels)


def test_at_home_counts_items_nearest_to_their_class() -> None:
    seen = Projection(
        labels=("a", "b"),
        rows=np.arange(4),
        classes=np.array([0, 0, 1, 1]),
        old=np.array([[0.0, 0], [1, 0], [10, 0], [11, 0]]),
        new={"x": np.array([[0.4, 3], [9.0, 0], [10, 0], [2, 2]])},
    )
    assert seen.at_home("x") == 2
