"""Shape of an embedding space: spread inside classes, distance between spaces, learners."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError, SpaceMismatch
from midspan.evaluation.scores import FloatArray64, as_matrix, prepare


def intra_class_distance(
    vectors: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    *,
    n_classes: int | None = None,
    seed: int = 0,
) -> float:
    """Mean over classes of the mean ‖n(f) − n(class mean)‖², n = scaling to length one.

    The class mean is that of the unit vectors. The LCE supplement prints such values (Table 6, on 8
    classes: n_classes=8 draws as many) but refers for the formula to a section that we have not
    seen, so this definition is ours.

    Args:
        vectors: (N, D), of any length but zero.
        labels: (N,) the class of each vector.
        n_classes: Draw so many classes; None takes all.
        seed: Of the draw.

    Returns:
        The mean, from 0 (each class is one point) upwards.

    Raises:
        EvaluationError: Labels do not fit the vectors, or a class has no mean direction.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> labels = np.array([0, 0, 1, 1])
        >>> round(ms.evaluation.intra_class_distance(np.ones((4, 2)), labels), 6)
        0.0
    """
    unit = _unit(vectors)
    values = np.asarray(labels)
    if values.shape != (len(unit),):
        raise EvaluationError(f"{values.shape} labels for {len(unit)} vectors; give one a vector")
    names, codes = np.unique(values, return_inverse=True)
    if n_classes is not None and not 1 <= n_classes <= len(names):
        raise EvaluationError(f"n_classes = {n_classes}; there are {len(names)} classes")
    counts = np.bincount(codes)
    sums = np.zeros((len(names), unit.shape[1]))
    np.add.at(sums, codes, unit)
    lengths = np.linalg.norm(sums, axis=1)
    if (lengths < 1e-12 * counts).any():
        name = names[np.flatnonzero(lengths < 1e-12 * counts)[0]]
        raise EvaluationError(f"the vectors of class {name!r} cancel out: it has no mean direction")
    centres = sums / lengths[:, None]
    squared = np.square(unit - centres[codes]).sum(axis=1)
    spread: FloatArray64 = np.bincount(codes, weights=squared) / counts
    if n_classes is not None:
        spread = spread[np.random.default_rng(seed).choice(len(names), n_classes, replace=False)]
    return float(spread.mean())


def pairwise_distance(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """d_pw of the LCE supplement: mean ‖n(f¹ᵢ) − n(f²ᵢ)‖² of the same items, from 0 to 4.

    Small is not the aim: LCE keeps new vectors further from the old ones than an L2 loss does
    (0.409 against 0.230) and is the more compatible of the two.

    Args:
        first: (N, D) vectors of one encoder.
        second: (N, D) vectors of the same items by another, row by row.

    Returns:
        The mean squared distance of the unit vectors.

    Raises:
        SpaceMismatch: The dimensions differ.
        EvaluationError: The numbers of vectors differ, or there are none.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> ms.evaluation.pairwise_distance(np.eye(2), -np.eye(2))
        4.0
    """
    one, two = _unit(first), _unit(second)
    if one.shape[1] != two.shape[1]:
        raise SpaceMismatch(
            f"{one.shape[1]}-d and {two.shape[1]}-d vectors have no distance; map one of them "
            "into the other's space with a bridge"
        )
    if len(one) != len(two) or len(one) == 0:
        raise EvaluationError(f"expected the same items, got {len(one)} and {len(two)} vectors")
    return float(np.square(one - two).sum(axis=1).mean())


def learner_correlation(vectors: npt.NDArray[Any], *, n_learners: int) -> float:
    """Mean |Pearson correlation| of coordinates that belong to different learners (slices).

    Divide and Conquer reports such a coefficient (0.0602 → 0.0498 on SOP) without its formula;
    this one is ours. Its floor for N independent items is about 0.8 / √N. Coordinates that never
    change have no correlation and are left out.

    Args:
        vectors: (N, D), the learners' slices end to end.
        n_learners: How many slices of equal size there are.

    Returns:
        The mean, from 0 to 1.

    Raises:
        EvaluationError: D is no multiple of `n_learners`, or fewer than two slices vary.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> vectors = np.random.default_rng(0).normal(size=(500, 8))
        >>> bool(ms.evaluation.learner_correlation(vectors, n_learners=2) < 0.1)
        True
    """
    matrix = as_matrix(vectors, what="vectors").astype(np.float64)
    dim = matrix.shape[1]
    if isinstance(n_learners, bool) or n_learners < 2 or dim % n_learners:
        raise EvaluationError(
            f"expected at least 2 learners of equal size, got {n_learners} for {dim} dimensions"
        )
    if len(matrix) < 2 or not np.isfinite(matrix).all():
        raise EvaluationError(f"expected at least 2 vectors, all finite, got {len(matrix)}")
    centred = matrix - matrix.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=0)
    scale = np.maximum(np.abs(matrix).max(axis=0), np.finfo(float).tiny)
    varies = lengths > 1e-12 * scale * np.sqrt(len(matrix))
    learner = np.repeat(np.arange(n_learners), dim // n_learners)[varies]
    standard = centred[:, varies] / lengths[varies]
    correlation = np.abs(standard.T @ standard)  # (D, D)
    different = learner[:, None] != learner
    if not different.any():
        raise EvaluationError("fewer than two learners have coordinates that vary")
    return float(correlation[different].mean())


def _unit(vectors: npt.NDArray[Any]) -> FloatArray64:
    matrix = as_matrix(vectors, what="vectors")
    prepare(matrix, metric="cosine", what="vectors", side="query")  # for its checks
    exact = matrix.astype(np.float64)
    unit: FloatArray64 = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    return unit
