"""Gains and scores of an upgrade, on plain numbers: one retrieval score for each situation.

    old     old queries on the old gallery          M(o, o)
    new     new queries on the new gallery          M(n, n), "self"
    cross   new queries on the old gallery          M(n, o)
    upper   an encoder trained alone, on itself     M(*, *), what the new one could reach

The scale does not matter (fractions or percent, the same for all four); results are fractions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError, SpaceMismatch
from midspan.evaluation.retrieval import evaluate, pairs_of
from midspan.evaluation.scores import FloatArray64
from midspan.spaces import Embeddings


@dataclass(frozen=True, slots=True)
class Gains:
    """Gains of an update, as shares of what the upper bound gains."""

    update: float
    performance: float
    upgrade: float


def gains(*, old: float, new: float, cross: float | Iterable[float], upper: float) -> Gains:
    """Update gain (BCT), performance and upgrade gain (LCE).

        update       (cross − old) / (upper − old)
        performance  (new − old) / |upper − old|
        upgrade      (cross − old) / |upper − old|

    LCE's absolute value keeps the sign of the numerator when the new encoder is meant to be weaker
    (upper < old, its Tables 2 and 4). BCT's gain compares with an improvement: it is nan if there
    is none (upper ≤ old). All are nan if upper = old.

    Args:
        old: Score of old queries on the old gallery.
        new: Score of new queries on the new gallery.
        cross: Score of new queries on the old gallery, or those of several directions, of which the
            best counts (LCE supplement).
        upper: Score of an encoder trained alone, on its own gallery.

    Returns:
        The three gains, as shares of what the upper bound gains.

    Raises:
        EvaluationError: `cross` is empty.

    Example:
        >>> import midspan as ms
        >>> round(ms.evaluation.gains(old=0.5, new=0.7, cross=0.6, upper=0.7).update, 3)
        0.5
    """
    best = _best(cross)
    room = upper - old
    if room == 0:
        return Gains(update=math.nan, performance=math.nan, upgrade=math.nan)
    return Gains(
        update=(best - old) / room if room > 0 else math.nan,
        performance=(new - old) / abs(room),
        upgrade=(best - old) / abs(room),
    )


@dataclass(frozen=True, slots=True)
class PScores:
    """P-scores: the gain of the new encoder (up), of compatibility (comp), and their mean."""

    up: float
    comp: float
    score: float


def p_scores(
    *, old: float, new: float, cross: float | Iterable[float], upper: float, beta: float = 1.0
) -> PScores:
    """AdvBCT's P_up, P_comp and P_β on one data set; the paper prints them times 100.

        up     σ((new − upper) / upper)            0.5: as good as an encoder trained alone
        comp   σ((cross − old) / |upper − old|)    0.5: cross is as good as old
        score  (1 + β²) · comp · up / (β² · comp + up)

    Departs from the paper where upper < old: there the absolute value is taken, as LCE does,
    so that comp > 0.5 always means cross > old. If upper = old, comp is its limit: 0, 0.5 or 1.

    Args:
        old: Score of old queries on the old gallery.
        new: Score of new queries on the new gallery.
        cross: Score of new queries on the old gallery, or of several directions; the best counts.
        upper: Score of an encoder trained alone, on its own gallery.
        beta: Above 1, `score` weighs up more; below 1, comp.

    Returns:
        The three scores, between 0 and 1.

    Raises:
        EvaluationError: `upper` or `beta` is not above 0, or `cross` is empty.

    Example:
        >>> import midspan as ms
        >>> scores = ms.evaluation.p_scores(old=0.5, new=0.7, cross=0.6, upper=0.7)
        >>> round(scores.up, 3), round(scores.comp, 3)
        (0.5, 0.622)
    """
    if not upper > 0 or not beta > 0:
        raise EvaluationError(f"upper = {upper} and beta = {beta}; both must be above 0")
    best = _best(cross)
    room = abs(upper - old)
    if room:
        comp = _sigmoid((best - old) / room)
    else:
        comp = math.nan if math.isnan(best) else 0.5 + 0.5 * float(np.sign(best - old))
    up = _sigmoid((new - upper) / upper)
    total = beta**2 * comp + up
    return PScores(up=up, comp=comp, score=(1 + beta**2) * comp * up / total)


def average_p_scores(each: Sequence[PScores]) -> PScores:
    """The mean of all three over data sets, as AdvBCT's Table 3 takes it.

    The mean of P_β is not the P_β of the means.

    Args:
        each: The scores of each data set.

    Returns:
        The mean of up, of comp and of score.

    Raises:
        EvaluationError: There is none to average.

    Example:
        >>> import midspan as ms
        >>> one = ms.evaluation.p_scores(old=0.5, new=0.7, cross=0.6, upper=0.7)
        >>> ms.evaluation.average_p_scores([one, one]) == one
        True
    """
    if not each:
        raise EvaluationError("no P-scores to average")
    values = np.array([(one.up, one.comp, one.score) for one in each]).mean(axis=0)
    return PScores(up=float(values[0]), comp=float(values[1]), score=float(values[2]))


def is_compatible(*, cross: float, old: float) -> bool:
    """BCT's criterion: new queries find more in the old gallery than old ones did.

    Args:
        cross: Score of new queries on the old gallery.
        old: Score of old queries on the old gallery.

    Returns:
        True where `cross` is above `old`; a tie is not enough.

    Example:
        >>> import midspan as ms
        >>> ms.evaluation.is_compatible(cross=0.61, old=0.58)
        True
    """
    return bool(cross > old)


def _best(cross: float | Iterable[float]) -> float:
    scores = [float(score) for score in cross] if isinstance(cross, Iterable) else [float(cross)]
    if not scores:
        raise EvaluationError("cross is empty; give the score of at least one direction")
    return max(scores)


def _sigmoid(x: float) -> float:
    return 0.5 * (1 + math.tanh(x / 2))  # does not overflow


# ---- chains of encoders -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainSummary:
    """CoReS' and CL²R's summary of a chain; A[t, k] = queries of encoder t on gallery of k ≤ t."""

    ac: float  # share of pairs t > k with A[t, k] > A[k, k]
    ac_ties: float  # the same with ≥, as the CoReS and CL²R code counts
    am: float  # mean of the lower triangle with its diagonal
    bc: float  # mean over k < T of A[T, k] − A[k, k]
    fc: float  # mean over t > 1 of A[t, t − 1] − A[t, t]


def chain_summary(matrix: npt.ArrayLike) -> ChainSummary:
    """From the (T, T) matrix of `compatibility_matrix`.

    Args:
        matrix: A[t, k], queries of encoder t on the gallery of k ≤ t. What is above the diagonal is
            not looked at.

    Returns:
        Shares and means over the chain; the attributes of `ChainSummary` say which.

    Raises:
        EvaluationError: The matrix is not square, is smaller than (2, 2), or has missing values in
            its lower triangle.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> summary = ms.evaluation.chain_summary(np.array([[0.5, np.nan], [0.55, 0.6]]))
        >>> type(summary).__name__
        'ChainSummary'
    """
    values: FloatArray64 = np.asarray(matrix, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or len(values) < 2:
        raise EvaluationError(f"expected a matrix of shape (T, T) with T >= 2, got {values.shape}")
    own = np.diagonal(values)
    later, earlier = np.tril_indices(len(values), k=-1)
    crossed = values[later, earlier]
    if not np.isfinite(crossed).all() or not np.isfinite(own).all():
        raise EvaluationError("the lower triangle of the matrix has missing values")
    steps = np.arange(1, len(values))
    return ChainSummary(
        ac=float((crossed > own[earlier]).mean()),
        ac_ties=float((crossed >= own[earlier]).mean()),
        am=float(values[np.tril_indices(len(values))].mean()),
        bc=float((values[-1, :-1] - own[:-1]).mean()),
        fc=float((values[steps, steps - 1] - own[steps]).mean()),
    )


def compatibility_matrix(
    chain: Sequence[Embeddings],
    *,
    metric: str = "map",
    exclude_column: str | None = None,
    direct: bool = True,
) -> FloatArray64:
    """(T, T) scores of the same labelled items seen by encoders 1 … T, oldest first.

    A[t, k] is for queries of t on the gallery of k ≤ t, the query's own item left out; nan above
    the diagonal. All must have the same dimension: map the others with a bridge first.

    Args:
        chain: The items as each encoder sees them, oldest first, paired by id.
        metric: A name in METRICS.
        exclude_column: Gallery items with the query's value in this column do not count.
        direct: Compare the vectors although nothing connects their spaces.

    Returns:
        The (T, T) matrix; `chain_summary` reduces it.

    Raises:
        EvaluationError: The chain has fewer than two encoders.
        SpaceMismatch: The dimensions differ.

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
        >>> ms.evaluation.compatibility_matrix([old, new]).shape
        (2, 2)
    """
    if len(chain) < 2:
        raise EvaluationError(f"expected a chain of at least 2 encoders, got {len(chain)}")
    dims = [embeddings.space.dim for embeddings in chain]
    if len(set(dims)) > 1:
        raise SpaceMismatch(
            f"the chain has {dims} dimensions; bring all into one space with bridges first"
        )
    paired = [pairs_of(chain[0], embeddings, what="compared encoders")[1] for embeddings in chain]
    matrix = np.full((len(chain), len(chain)), np.nan)
    for t, query in enumerate(paired):
        for k, gallery in enumerate(paired[: t + 1]):
            result = evaluate(
                query, gallery, metrics=[metric], exclude_column=exclude_column, direct=direct
            )
            matrix[t, k] = result.mean(metric)
    return matrix
