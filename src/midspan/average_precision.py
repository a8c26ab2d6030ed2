"""Average precision, from the ranks of the relevant items alone.

    ranks   (Q, R) 0-based ranks of each query's relevant items, ascending, filled up with NEVER
    n       (Q,) how many relevant items it has

Every AP of the package is the one here, over a part of the ranks, or the trapezoid of
`midspan.evaluation.ranking`, which is another definition.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from midspan.spaces import IntArray

FloatArray64 = npt.NDArray[np.float64]

NEVER = np.iinfo(np.int64).max  # the rank of what is not there


def hit_ranks(right: npt.NDArray[np.bool_]) -> tuple[IntArray, IntArray]:
    """(ranks, n) of rankings (Q, G) that say which places are relevant."""
    n = np.count_nonzero(right, axis=1)
    line, place = np.nonzero(right)
    nth = np.arange(len(line)) - np.repeat(np.cumsum(n) - n, n)
    ranks = np.full((len(right), int(n.max(initial=0))), NEVER, dtype=np.int64)
    ranks[line, nth] = place
    return ranks, n


def precisions(ranks: IntArray, *, times: FloatArray64 | float = 1.0) -> FloatArray64:
    """(Q, R) precision at the rank of each relevant item, 0 where there is none.

    times: for how many items each item that is not relevant stands, (Q,) or for all queries.
    """
    there = ranks != NEVER
    hits = np.arange(1, ranks.shape[1] + 1)
    wrong = np.where(there, ranks, 0) - (hits - 1)
    seen = hits + np.broadcast_to(times, len(ranks))[:, None] * wrong
    result: FloatArray64 = np.divide(hits, seen, out=np.zeros(ranks.shape), where=there)
    return result


def average_precision(
    ranks: IntArray, n: IntArray, *, times: FloatArray64 | float = 1.0
) -> FloatArray64:
    """(Q,) mean over all relevant items of the precision at their rank; nan where n is 0.

    The definition of Market-1501, PML and scikit-learn. times: see `precisions`.

    >>> average_precision(np.array([[0, 2]]), np.array([2]))
    array([0.83333333])
    """
    total = precisions(ranks, times=times).sum(axis=1)
    return np.where(n > 0, total / np.maximum(n, 1), np.nan)
