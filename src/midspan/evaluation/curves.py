"""Backfill curves: a metric against the share of the gallery that has new vectors.

New queries search a gallery whose items get their new vectors in a given order. Between two points
of the curve only some items change, so the curve is not measured point by point. The rank of a
relevant item counts the items above it, and each item has two scores and one moment at which the
second takes the place of the first. So both scores of every item are compared once with both
scores of the relevant item, the counts are kept apart by the moment, and the ranks at all points
are sums of them. Two products and four comparisons make the curve, however many points it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.average_precision import NEVER
from midspan.errors import EvaluationError
from midspan.evaluation.mixed import MixedScorer, mixed_ranks
from midspan.evaluation.ranking import parse_metric
from midspan.evaluation.ranks import countable, queries_at_once
from midspan.evaluation.relevance import NO_ROW
from midspan.evaluation.retrieval import by_labels, pairs_of
from midspan.evaluation.scores import FloatArray64
from midspan.evaluation.threads import Buffers, Threads
from midspan.spaces import Embeddings, IntArray

LINES = 64  # queries that are compared together


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric along a backfill; all (P,) for P points, per query (P, Q).

    Flips count queries whose first hit is lost or won against the time before the upgrade.
    """

    metric: str
    fractions: FloatArray64
    values: FloatArray64
    per_query: FloatArray64
    negative_flips: FloatArray64
    positive_flips: FloatArray64

    @property
    def area_mean(self) -> float:
        """Plain mean of the points, ends with full weight, as FastFill's code takes it."""
        return float(self.values.mean())

    @property
    def area_trapezoid(self) -> float:
        """Area under the curve between its ends, over its width."""
        width = np.diff(self.fractions)
        if width.sum() == 0:
            return self.area_mean
        heights = (self.values[1:] + self.values[:-1]) / 2
        return float((width * heights).sum() / width.sum())


def backfill_curve(
    *,
    query: Embeddings,
    gallery_old: Embeddings,
    gallery_new: Embeddings,
    order: npt.ArrayLike,
    metric: str = "map",
    points: int = 21,
    fractions: npt.ArrayLike | None = None,
    before: npt.NDArray[Any] | None = None,
    exclude_column: str | None = None,
    direct: bool = False,
) -> Curve:
    """The metric after each of `points` equal steps of the backfill, ends included.

    Items with the query's id are left out.

    Args:
        query: Vectors of the new encoder.
        gallery_old: The gallery in a space they may be compared with (a compatible old space, or
            mapped by a bridge).
        gallery_new: The same items with their new vectors, by id.
        order: The backfill order, as ids of the gallery or rows of gallery_old; each exactly once.
        metric: A name in METRICS.
        points: Cut-offs at ⌊i·N / (points − 1)⌋ items, as in FastFill's code.
        fractions: Other places on the curve, in place of `points`.
        before: (Q,) recall@1 of the service before the upgrade, old queries on old vectors; flips
            are counted from there. Default: the first point of the curve.
        exclude_column: As in `evaluate`.
        direct: As in `evaluate`.

    Returns:
        The curve, with flips and the values per query.

    Raises:
        EvaluationError: The order does not name each item once, or no query has a relevant item.
        SpaceMismatch: Queries and gallery may not be compared.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> labels = {"labels": np.arange(40) % 4}
        >>> ids = np.arange(40).astype(str)
        >>> old, new = (
        ...     ms.Embeddings(ids, rng.normal(size=(40, 8)), ms.Space(name, 8), labels)
        ...     for name in ("old", "new")
        ... )
        >>> curve = ms.evaluation.backfill_curve(
        ...     query=new, gallery_old=old, gallery_new=new, order=ids, points=5, direct=True
        ... )
        >>> len(curve.values)
        5
    """
    parsed = parse_metric(metric)
    old, new = pairs_of(gallery_old, gallery_new, what="old and new gallery")
    sequence = _rows_in_order(order, old)
    cuts = _cuts(len(old), points=points, fractions=fractions)
    relevant, ignored = by_labels(query, old, exclude_column=exclude_column)
    # An item is new from the first point whose cut-off lies behind its place in the order.
    moment = np.empty(len(old), dtype=np.int64)
    moment[sequence] = np.searchsorted(cuts, np.arange(len(old)), side="right")
    scorer = MixedScorer.of(query, old, new, moment=moment, n_points=len(cuts), direct=direct)
    per_query = np.full((len(cuts), len(query)), np.nan)
    hits = np.full((len(cuts), len(query)), np.nan)
    recall = parse_metric("recall@1")
    asked = np.flatnonzero(relevant.counts)
    asked = asked[np.argsort(-relevant.counts[asked], kind="stable")]
    buffers = Buffers()
    with Threads(multiplications=2.0 * len(asked) * scorer.old.gallery.size) as threads:
        at_once = queries_at_once(scorer.n_columns, threads.size)

        def measure(start: int) -> None:
            queries = asked[start : start + at_once]
            rows = countable(relevant, ignored, queries)
            room = buffers.take("scores", 2 * len(queries) * scorer.n_columns).reshape(2, -1)
            lines = scorer.lines(queries, rows, ignored, room)
            ranks = np.empty((len(cuts), *rows.shape), dtype=np.int64)
            for first in range(0, len(queries), LINES):
                mixed_ranks(scorer, lines, ranks, first, min(first + LINES, len(queries)))
            np.copyto(ranks, NEVER, where=rows == NO_ROW)
            ranks.sort(axis=2)
            lined_up = ranks.reshape(-1, rows.shape[1])  # point by point
            n = np.tile((rows != NO_ROW).sum(axis=1), len(cuts))
            per_query[:, queries] = parsed.per_query(lined_up, n).reshape(len(cuts), -1)
            hits[:, queries] = recall.per_query(lined_up, n).reshape(len(cuts), -1)

        for _ in threads.map(measure, range(0, len(asked), at_once)):
            pass
    answered = np.isfinite(per_query[0])
    if not answered.any():
        raise EvaluationError(
            f"none of the {len(query)} queries has a relevant item in the gallery"
        )
    reference = _reference(before, hits[0])
    return Curve(
        metric=metric,
        fractions=cuts / len(old),
        values=per_query[:, answered].mean(axis=1),
        per_query=per_query,
        negative_flips=((reference == 1) & (hits == 0))[:, answered].mean(axis=1),
        positive_flips=((reference == 0) & (hits == 1))[:, answered].mean(axis=1),
    )


def _reference(before: npt.NDArray[Any] | None, first: FloatArray64) -> FloatArray64:
    if before is None:
        return first
    values = np.asarray(before, dtype=np.float64)
    if values.shape != first.shape:
        raise EvaluationError(f"before has shape {values.shape} for {len(first)} queries")
    return values


def _rows_in_order(order: npt.ArrayLike, gallery: Embeddings) -> IntArray:
    given = np.asarray(order)
    rows = gallery.rows_of(given) if given.dtype.kind in "US" else given.astype(np.int64)
    if rows.shape != (len(gallery),) or not np.array_equal(np.sort(rows), np.arange(len(gallery))):
        raise EvaluationError(
            f"expected each of {len(gallery)} gallery items exactly once in the order, got shape "
            f"{rows.shape}"
        )
    return rows


def _cuts(n_items: int, *, points: int, fractions: npt.ArrayLike | None) -> IntArray:
    if fractions is None:
        if points < 2:
            raise EvaluationError(f"points = {points}; a curve has at least its two ends")
        return np.arange(points) * n_items // (points - 1)
    shares = np.asarray(fractions, dtype=np.float64)
    inside = ((shares >= 0) & (shares <= 1)).all()
    if shares.ndim != 1 or len(shares) == 0 or not inside or (np.diff(shares) < 0).any():
        raise EvaluationError("fractions must be ascending and between 0 and 1")
    return np.floor(shares * n_items + 1e-9).astype(np.int64)
