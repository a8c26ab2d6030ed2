"""Confidence intervals from per-query values: queries are drawn again with replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation.scores import FloatArray64
from midspan.spaces import Column

Statistic = Callable[..., Any]

DRAWS_AT_ONCE = 2**22  # resampled values held at a time


def bootstrap_ci(
    *values: npt.NDArray[Any],
    statistic: Statistic | None = None,
    n: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """(low, high) of the percentile interval over queries; (nan, nan) without any query.

    Args:
        values: One (Q,) array, or several that belong together query by query. Queries with nan in
            any of them have no answer and are left out.
        statistic: Called with the means of the resamples, one (n,) array for each of `values`;
            returns (n,). Default: the mean of the first. Undefined values of it (nan, infinite) are
            left out.
        n: Resamples, 1000 as is usual for 95 % percentile intervals (Efron and Tibshirani).
        level: Share of the resamples inside the interval.
        seed: Of the resampling.

    Returns:
        (low, high).

    Raises:
        EvaluationError: The arrays are not of the same queries, or `n` or `level` is out of range.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> low, high = ms.evaluation.bootstrap_ci(np.tile([0.0, 1.0], 50))
        >>> bool(0.3 < low < 0.5 < high < 0.7)
        True
    """
    means = bootstrap_means(*values, n=n, seed=seed)
    if means.shape[1] == 0:
        return float("nan"), float("nan")
    with np.errstate(divide="ignore", invalid="ignore"):
        results = means[0] if statistic is None else np.asarray(statistic(*means), dtype=float)
    return percentile_interval(results, level=level)


def bootstrap_means(*values: npt.NDArray[Any], n: int = 1000, seed: int = 0) -> FloatArray64:
    """(len(values), n) means of the same resamples of queries; (len(values), 0) without any."""
    if not values or n < 1:
        raise EvaluationError(
            f"expected at least one array and n >= 1, got {len(values)} and n = {n}"
        )
    columns = [np.asarray(column, dtype=np.float64) for column in values]
    if any(column.shape != columns[0].shape or column.ndim != 1 for column in columns):
        shapes = ", ".join(str(column.shape) for column in columns)
        raise EvaluationError(f"expected the same queries, (Q,), in each array, got {shapes}")
    table = np.stack(columns)
    table = table[:, np.isfinite(table).all(axis=0)]  # (V, Q)
    n_queries = table.shape[1]
    if n_queries == 0:
        return np.empty((len(table), 0))
    means = np.empty((len(table), n))
    for start, counts in _counts(n_queries, n=n, rng=np.random.default_rng(seed)):
        means[:, start : start + len(counts)] = table @ counts.T / n_queries
    return means


def _counts(
    n_queries: int, *, n: int, rng: np.random.Generator
) -> Iterator[tuple[int, FloatArray64]]:
    """(start, (b, Q)) how often each query is drawn in some of the n resamples."""
    at_once = max(1, DRAWS_AT_ONCE // n_queries)
    for start in range(0, n, at_once):
        some = min(at_once, n - start)
        drawn = rng.integers(n_queries, size=(some, n_queries))
        drawn += np.arange(some)[:, None] * n_queries
        counts = np.bincount(drawn.reshape(-1), minlength=some * n_queries)
        yield start, counts.reshape(some, n_queries).astype(np.float64)


def percentile_interval(results: FloatArray64, *, level: float = 0.95) -> tuple[float, float]:
    if not 0 < level < 1:
        raise EvaluationError(f"expected a level between 0 and 1, such as 0.95, got {level}")
    finite = results[np.isfinite(results)]
    if len(finite) == 0:
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def by_group(values: npt.NDArray[Any], groups: Column) -> dict[str, FloatArray64]:
    """The values of each group, nan left out; groups are named by their text, in sorted order."""
    column, names = np.asarray(values, dtype=np.float64), np.asarray(groups)
    if column.shape != names.shape:
        raise EvaluationError(f"{column.shape} values for {names.shape} group names")
    answered = np.isfinite(column)
    return {
        str(name): column[(names == name) & answered]
        for name in np.unique(names[answered]).tolist()
    }
