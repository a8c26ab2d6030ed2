"""Ranking metrics, per query, from the ranks of the relevant items alone.

    ranks   (Q, R) 0-based ranks of each query's relevant items, ascending, filled up with NEVER
    n       (Q,) how many relevant items it has; may exceed those in the gallery

as `relevant_ranks` gives them. Every function returns (Q,) float64, nan where n is 0. Names say
which definition is meant: `map` is the plain mean of precisions at the hits, `map_trapezoid` the
one of Oxford and Paris, and they differ.

>>> ranks, n = np.array([[0, 2]]), np.array([2])  # first and third of the ranking
>>> average_precision(ranks, n), average_precision_trapezoid(ranks, n)
(array([0.83333333]), array([0.79166667]))
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from midspan.average_precision import NEVER, average_precision, precisions
from midspan.config import look_up
from midspan.errors import EvaluationError
from midspan.evaluation.ranks import relevant_ranks
from midspan.evaluation.scores import FloatArray64
from midspan.spaces import IntArray

PerQuery = Callable[[IntArray, IntArray], FloatArray64]

# What `midspan eval --metric` knows; @k stands for any whole number, as in recall@1.
METRICS = {
    "map": "midspan.evaluation.ranking:average_precision",
    "map_trapezoid": "midspan.evaluation.ranking:average_precision_trapezoid",
    "map@k": "midspan.evaluation.ranking:map_at_k",
    "map@r": "midspan.evaluation.ranking:map_at_r",
    "recall@k": "midspan.evaluation.ranking:recall_at_k",
    "cmc@k": "midspan.evaluation.ranking:recall_at_k",
    "r_precision": "midspan.evaluation.ranking:r_precision",
    "precision@k": "midspan.evaluation.ranking:precision_at_k",
    "mp@k": "midspan.evaluation.ranking:mp_at_k",
    "nmi": "midspan.evaluation.clustering:nmi",
}

__all__ = [
    "METRICS",
    "NEVER",
    "RankingMetric",
    "average_precision",
    "average_precision_trapezoid",
    "cmc",
    "map_at_k",
    "map_at_r",
    "mp_at_k",
    "parse_metric",
    "precision_at_k",
    "r_precision",
    "recall_at_k",
    "relevant_ranks",
]


def average_precision_trapezoid(ranks: IntArray, n: IntArray) -> FloatArray64:
    """Revisited Oxford and Paris: the precisions before and at each hit, averaged."""
    there = ranks != NEVER
    hits = np.arange(ranks.shape[1])  # (R,) relevant items before this one
    before = np.divide(hits, ranks, out=np.ones(ranks.shape), where=ranks > 0)
    area = np.where(there, 0.5 * (before + precisions(ranks)), 0.0)
    return _over(area.sum(axis=1), n)


def map_at_k(ranks: IntArray, n: IntArray, *, k: int) -> FloatArray64:
    """Precisions at the hits among the first k, over min(n, k) (GLDv2 with k = 100)."""
    among_k = np.where(ranks < check_k(k), precisions(ranks), 0.0)
    return _over(among_k.sum(axis=1), np.minimum(n, k))


def map_at_r(ranks: IntArray, n: IntArray) -> FloatArray64:
    """Precisions at the hits among the first R = n, over R (Musgrave et al., 2020)."""
    among_r = np.where(ranks < n[:, None], precisions(ranks), 0.0)
    return _over(among_r.sum(axis=1), n)


def r_precision(ranks: IntArray, n: IntArray) -> FloatArray64:
    """Share of relevant items among the first R = n."""
    return _over((ranks < n[:, None]).sum(axis=1), n)


def precision_at_k(ranks: IntArray, n: IntArray, *, k: int) -> FloatArray64:
    """Share of relevant items among the first k, over k even if the gallery is smaller."""
    return _where_any((ranks < check_k(k)).sum(axis=1) / k, n)


def mp_at_k(ranks: IntArray, n: IntArray, *, k: int) -> FloatArray64:
    """Revisited Oxford and Paris: precision at k' = min(k, rank of the last relevant item)."""
    there = ranks != NEVER
    last = np.where(there, ranks, -1).max(axis=1, initial=-1) + 1  # 1-based
    cut = np.minimum(last, check_k(k))
    hits = (ranks < cut[:, None]).sum(axis=1)
    return _where_any(hits / np.maximum(cut, 1), n)


def recall_at_k(ranks: IntArray, n: IntArray, *, k: int) -> FloatArray64:
    """1 where any of the first k is relevant, else 0: SOP's and CUB's Recall@k, and CMC rank k."""
    first = ranks.min(axis=1, initial=NEVER)
    return _where_any((first < check_k(k)).astype(np.float64), n)


def cmc(ranks: IntArray, n: IntArray, *, most: int) -> FloatArray64:
    """(Q, most) cumulative match characteristic: column k − 1 is recall_at_k."""
    first = ranks.min(axis=1, initial=NEVER)
    matched = first[:, None] < np.arange(1, check_k(most) + 1)
    return np.where(n[:, None] > 0, matched, np.nan)


def check_k(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise EvaluationError(f"expected k to be a whole number of at least 1, got {k!r}")
    return int(k)


def _over(total: FloatArray64 | IntArray, n: IntArray) -> FloatArray64:
    return _where_any(total / np.maximum(n, 1), n)


def _where_any(values: FloatArray64, n: IntArray) -> FloatArray64:
    return np.where(n > 0, values, np.nan)


# ---- names --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankingMetric:
    """A metric by its full name, such as 'recall@10', ready to be called on (ranks, n)."""

    name: str
    per_query: PerQuery


def parse_metric(name: str) -> RankingMetric:
    """'map', 'recall@10' … of METRICS; 'nmi' is no ranking metric and has a function of its own.

    Args:
        name: Such as "map" or "recall@10"; case and surrounding blanks do not matter.

    Returns:
        The metric, ready to be called on (ranks, n) of `relevant_ranks`.

    Raises:
        EvaluationError: No ranking metric has this name.

    Example:
        >>> import midspan as ms
        >>> ms.evaluation.parse_metric("recall@10").name
        'recall@10'
    """
    text = name.strip().lower()
    base, at, number = text.partition("@")
    if text in METRICS and not text.endswith("@k") and text != "nmi":
        return RankingMetric(text, look_up(METRICS, text, what="metric"))
    if at and f"{base}@k" in METRICS and number.isdigit() and int(number) > 0:
        function = look_up(METRICS, f"{base}@k", what="metric")
        return RankingMetric(f"{base}@{int(number)}", partial(function, k=int(number)))
    raise EvaluationError(f"no metric is called {name!r}{_hint(text)}")


def _hint(text: str) -> str:
    base, _, number = text.partition("@")
    if text == "nmi":
        return " with a value per query; use evaluation.nmi"
    if f"{base}@k" in METRICS:
        return f": {base}@k requires a whole number of at least 1, for example {base}@10"
    names = sorted({known.partition("@")[0] for known in METRICS})
    close = difflib.get_close_matches(base, names, n=1)
    if not close:
        return f"; known: {', '.join(METRICS)}"
    plain = close[0] in METRICS and not number
    return f"; did you mean {close[0] if plain else f'{close[0]}@{number or 10}'!r}?"
