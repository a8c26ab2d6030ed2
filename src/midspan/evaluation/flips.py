"""Flips: queries that were right before and are wrong now (negative), and the reverse (positive).

A mean can rise while a part of the queries gets worse; flips show that part. Two definitions:
a hit among the first k that is lost, and an average precision that drops by more than epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation.bootstrap import bootstrap_ci
from midspan.evaluation.scores import BoolArray, FloatArray64
from midspan.spaces import Column


@dataclass(frozen=True, slots=True)
class Flips:
    """Shares of the queries that have an answer.

    For hits, accuracy after − accuracy before = positive − negative.
    relative: negative flips over those expected if errors before and after were independent,
    NFR / ((1 − ER before) · ER after); nan where that is 0.
    """

    negative: float
    positive: float
    relative: float
    negative_ci: tuple[float, float]
    positive_ci: tuple[float, float]
    n_queries: int


def flips(
    before: npt.NDArray[Any], after: npt.NDArray[Any], *, n: int = 1000, seed: int = 0
) -> Flips:
    """Flips of the first hit: right before and wrong after, and the reverse.

    Args:
        before: (Q,) hits of 0 and 1, as recall_at_k gives them; nan: no answer, left out.
        after: (Q,) hits of the same queries after the change.
        n: Resamples for the intervals.
        seed: Of the resampling.

    Returns:
        Shares of the queries that have an answer, with 95 % intervals.

    Raises:
        EvaluationError: A hit is neither 0 nor 1, or no query has both answers.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> before, after = np.array([1, 1, 0, 0]), np.array([1, 0, 1, 1])
        >>> found = ms.evaluation.flips(before, after)
        >>> found.negative, found.positive
        (0.25, 0.5)
    """
    hits = _paired(before, after)
    if not np.isin(hits, (0.0, 1.0)).all():
        raise EvaluationError("hits are 0 or 1; for average precisions use precision_flips")
    negative = (hits[0] == 1) & (hits[1] == 0)
    positive = (hits[0] == 0) & (hits[1] == 1)
    expected = hits[0].mean() * (1 - hits[1].mean())
    return _flips(negative, positive, expected=float(expected), n=n, seed=seed)


def precision_flips(
    before: npt.NDArray[Any],
    after: npt.NDArray[Any],
    *,
    epsilon: float = 0.0,
    n: int = 1000,
    seed: int = 0,
) -> Flips:
    """From any value per query: worse (better) by more than epsilon.

    Args:
        before: (Q,) a value for each query, such as its average precision; nan: left out.
        after: (Q,) the values of the same queries after the change.
        epsilon: Changes up to this size are no flips.
        n: Resamples for the intervals.
        seed: Of the resampling.

    Returns:
        Shares of the queries that have both values; `relative` is nan.

    Raises:
        EvaluationError: `epsilon` is below 0, or no query has both values.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> found = ms.evaluation.precision_flips(np.array([0.5, 0.5]), np.array([0.4, 0.9]))
        >>> found.negative, found.positive
        (0.5, 0.5)
    """
    if not epsilon >= 0:
        raise EvaluationError(f"expected epsilon >= 0, got {epsilon}")
    values = _paired(before, after)
    negative, positive = values[1] < values[0] - epsilon, values[1] > values[0] + epsilon
    return _flips(negative, positive, expected=float("nan"), n=n, seed=seed)


def flips_by_group(
    before: npt.NDArray[Any],
    after: npt.NDArray[Any],
    groups: Column,
    *,
    n: int = 1000,
    seed: int = 0,
) -> dict[str, Flips]:
    """Flips of hits inside each group of queries (class, country …) that has an answered query.

    Args:
        before: (Q,) hits of 0 and 1; nan: no answer.
        after: (Q,) hits of the same queries after the change.
        groups: (Q,) the group of each query.
        n: Resamples for the intervals.
        seed: Of the resampling.

    Returns:
        The flips by the name of the group.

    Raises:
        EvaluationError: There is not one group for each query.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> before, after = np.array([1, 1, 0, 0]), np.array([1, 0, 1, 1])
        >>> groups = np.array(["shoes", "shoes", "bags", "bags"])
        >>> ms.evaluation.flips_by_group(before, after, groups)["shoes"].negative
        0.5
    """
    first, second, names = np.asarray(before), np.asarray(after), np.asarray(groups)
    if names.shape != first.shape:
        raise EvaluationError(f"{names.shape} group names for {first.shape} queries")
    answered = np.isfinite(first.astype(float)) & np.isfinite(second.astype(float))
    return {
        str(name): flips(first[names == name], second[names == name], n=n, seed=seed)
        for name in np.unique(names[answered]).tolist()
    }


def _paired(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> FloatArray64:
    """(2, Q) of the queries that both answer."""
    first, second = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    if first.shape != second.shape or first.ndim != 1:
        raise EvaluationError(
            f"expected the same queries, (Q,), got {first.shape} before and {second.shape} after"
        )
    both = np.stack([first, second])
    both = both[:, np.isfinite(both).all(axis=0)]
    if both.shape[1] == 0:
        raise EvaluationError("no query has an answer both before and after")
    return both


def _flips(
    negative: BoolArray, positive: BoolArray, *, expected: float, n: int, seed: int
) -> Flips:
    share = float(negative.mean())
    return Flips(
        negative=share,
        positive=float(positive.mean()),
        relative=share / expected if expected > 0 else float("nan"),
        negative_ci=bootstrap_ci(negative, n=n, seed=seed),
        positive_ci=bootstrap_ci(positive, n=n, seed=seed),
        n_queries=len(negative),
    )
