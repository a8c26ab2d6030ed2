"""1:1 verification: TAR at a FAR, ROC, equal error rate, k-fold accuracy; all exact.

One rule everywhere: a pair is accepted if its score is *above* the threshold. A pair without a
face on one side scores −∞; no threshold is below that, so it is never accepted. For more
pairs than fit into memory see `pairs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError

Scores = npt.NDArray[np.floating[Any]]
FloatArray64 = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def allowed(rate: float, count: int) -> int:
    """⌊rate·count⌋ as a person reads it: 1e-4 of 10,000 is 1, whatever binary floats make of it.

    The rate counts as the shortest decimal that reads back as the same float, so the product is
    exact. (0.29·100 is 28.999… in floats; here it is 29.)
    """
    if not 0 <= rate <= 1:  # NaN fails too
        raise EvaluationError(f"a rate lies between 0 and 1, got {rate!r}; write 0.01 % as 1e-4")
    return math.floor(Fraction(str(rate)) * count)


@overload
def threshold_at_far(impostor: Scores, *, far: float) -> float: ...
@overload
def threshold_at_far(impostor: Scores, *, far: Sequence[float]) -> FloatArray64: ...
def threshold_at_far(impostor: Scores, *, far: float | Sequence[float]) -> float | FloatArray64:
    """The (k+1)-th largest impostor score, k = ⌊FAR·N⌋: above it are at most k false accepts.

    Fewer than k where scores tie. (insightface takes the ROC point nearest in FAR, PFE rounds k
    and accepts at the threshold: both may accept more than FAR allows.) FAR = 1 gives −∞.

    Args:
        impostor: (M,) scores of pairs of two subjects; a pair without a face is −inf.
        far: One false accept rate, or several.

    Returns:
        One threshold, or an array of as many as there are rates.

    Raises:
        EvaluationError: A score is NaN, or a rate is not between 0 and 1.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> genuine, impostor = np.array([0.9, 0.5, 0.3]), np.array([0.6, 0.4, 0.2, 0.1])
        >>> float(ms.evaluation.threshold_at_far(impostor, far=0.25))
        0.4
    """
    impostor = checked(impostor, "impostor")
    rates = _rates(far)
    ks = [allowed(rate, len(impostor)) for rate in rates]
    places = sorted({len(impostor) - 1 - k for k in ks if k < len(impostor)})
    ordered = np.partition(impostor, places) if places else impostor
    thresholds = np.array(
        [ordered[len(impostor) - 1 - k] if k < len(impostor) else -np.inf for k in ks],
        dtype=np.float64,
    )
    return thresholds if isinstance(far, Sequence) else float(thresholds[0])


@overload
def tar_at_far(genuine: Scores, impostor: Scores, *, far: float) -> float: ...
@overload
def tar_at_far(genuine: Scores, impostor: Scores, *, far: Sequence[float]) -> FloatArray64: ...
def tar_at_far(
    genuine: Scores, impostor: Scores, *, far: float | Sequence[float]
) -> float | FloatArray64:
    """Share of genuine pairs above the threshold of `threshold_at_far`.

    Args:
        genuine: (N,) scores of pairs of the same subject; a pair without a face is −inf.
        impostor: (M,) scores of pairs of two subjects.
        far: One false accept rate, or several.

    Returns:
        One true accept rate, or an array of as many as there are rates.

    Raises:
        EvaluationError: A score is NaN, or a rate is not between 0 and 1.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> genuine, impostor = np.array([0.9, 0.5, 0.3]), np.array([0.6, 0.4, 0.2, 0.1])
        >>> ms.evaluation.tar_at_far(genuine, impostor, far=0.25)
        0.6666666666666666
    """
    genuine = checked(genuine, "genuine")
    thresholds = threshold_at_far(impostor, far=_rates(far))
    tar = np.array([np.mean(genuine > threshold) for threshold in thresholds])
    return tar if isinstance(far, Sequence) else float(tar[0])


@dataclass(frozen=True, slots=True)
class Roc:
    """False and true accept rate at each threshold, thresholds falling; exact at every point."""

    far: FloatArray64  # (T,) rising
    tar: FloatArray64  # (T,) rising
    thresholds: FloatArray64  # (T,) falling; the last is −∞

    def compressed(self, points: int = 1000) -> Roc:
        """At most `points` of these points, for plots and files; none is moved.

        First goes what a straight line shows as well; then the points nearest below a
        log-spaced grid of FAR are kept, with both ends.
        """
        if points < 2:
            raise EvaluationError(f"expected at least 2 points for a curve, got {points}")
        keep = np.ones(len(self.far), dtype=bool)
        bend = np.abs(np.diff([self.far, self.tar], 2)).max(axis=0)
        keep[1:-1] = bend > 1e-12  # rounding of the rates, far below one pair
        rows = np.flatnonzero(keep)
        if len(rows) > points:
            positive = self.far[self.far > 0]
            low = positive[0] if len(positive) else 1.0
            grid = np.geomspace(low, max(self.far[-1], low), points - 2)
            below = np.searchsorted(self.far, grid * (1 + 1e-12), side="right") - 1
            rows = np.unique(np.concatenate([[0], below, [len(self.far) - 1]]))
        return Roc(self.far[rows], self.tar[rows], self.thresholds[rows])


def roc(genuine: Scores, impostor: Scores) -> Roc:
    """One point for each distinct score as the threshold, and −∞.

    Args:
        genuine: (N,) scores of pairs of the same subject; a pair without a face is −inf.
        impostor: (M,) scores of pairs of two subjects.

    Returns:
        The curve; `compressed` makes it small enough for a plot.

    Raises:
        EvaluationError: A score is NaN, or there are none of a kind.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> genuine, impostor = np.array([0.9, 0.5, 0.3]), np.array([0.6, 0.4, 0.2, 0.1])
        >>> ms.evaluation.roc(genuine, impostor).thresholds.shape
        (8,)
    """
    genuine, impostor = checked(genuine, "genuine"), checked(impostor, "impostor")
    rising = np.unique(np.concatenate([genuine, impostor]).astype(np.float64, copy=False))
    finite = rising[np.isfinite(rising)]
    thresholds = np.concatenate([finite[::-1], [-np.inf]])
    return Roc(
        far=_share_above(impostor, thresholds),
        tar=_share_above(genuine, thresholds),
        thresholds=thresholds,
    )


def eer(genuine: Scores, impostor: Scores) -> float:
    """The rate at which false accepts and false rejects are equally frequent.

    Between two neighbouring points of the ROC it is interpolated linearly.

    Args:
        genuine: (N,) scores of pairs of the same subject.
        impostor: (M,) scores of pairs of two subjects.

    Returns:
        The rate, from 0 to 1.

    Raises:
        EvaluationError: Pairs without a face leave no threshold with equal errors.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> genuine, impostor = np.array([0.9, 0.5, 0.3]), np.array([0.6, 0.4, 0.2, 0.1])
        >>> round(ms.evaluation.eer(genuine, impostor), 3)
        0.333
    """
    curve = roc(genuine, impostor)
    reject = 1 - curve.tar
    gap = curve.far - reject  # rises from −1
    after = int(np.searchsorted(gap, 0.0))  # first point with far >= reject
    if after == len(gap):
        raise EvaluationError(
            f"no equal error rate: even the lowest threshold rejects {reject[-1]:.1%} of the "
            f"genuine and accepts {curve.far[-1]:.1%} of the impostor pairs, because the others "
            "have no face; leave those pairs out"
        )
    if gap[after] == 0 or after == 0:
        return float(max(curve.far[after], reject[after]))
    share = -gap[after - 1] / (gap[after] - gap[after - 1])
    return float(curve.far[after - 1] + share * (curve.far[after] - curve.far[after - 1]))


@dataclass(frozen=True, slots=True)
class KFold:
    """Accuracy by folds: the threshold of each is chosen on the others."""

    accuracy: FloatArray64  # (F,) on each fold, with the threshold of the others
    thresholds: FloatArray64  # (F,)
    correct: BoolArray  # (N,) each pair, with the threshold of its fold

    @property
    def mean(self) -> float:
        return float(self.accuracy.mean())

    @property
    def std(self) -> float:
        """Over the folds, divided by their number (not by one less)."""
        return float(self.accuracy.std())


def kfold_accuracy(scores: Scores, same: npt.ArrayLike, folds: int | npt.ArrayLike = 10) -> KFold:
    """Accuracy on each fold with the threshold that is best on all other folds (LFW).

    The threshold lies midway between two neighbouring scores; of several equally good ones the
    highest is taken. (The released code of many papers tries a grid of 400 instead.)

    Args:
        scores: (N,) scores of pairs.
        same: (N,) True where both sides show the same subject.
        folds: The fold of each pair, or their number: then the pairs come fold after fold, as in
            LFW's list.

    Returns:
        Accuracy and threshold of each fold, and which pairs came out right.

    Raises:
        EvaluationError: The arrays do not fit together, or there are fewer than two folds.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> scores, same = np.tile([0.9, 0.1], 10), np.tile([True, False], 10)
        >>> float(ms.evaluation.kfold_accuracy(scores, same, folds=5).mean)
        1.0
    """
    scores = checked(scores, "pair").astype(np.float64)
    same = np.asarray(same, dtype=bool)
    if same.shape != scores.shape:
        raise EvaluationError(f"{len(scores)} scores but 'same' has shape {same.shape}")
    if isinstance(folds, int):
        if not 2 <= folds <= len(scores):
            raise EvaluationError(f"{len(scores)} pairs cannot be cut into {folds} folds")
        fold = np.arange(len(scores)) * folds // len(scores)
    else:
        fold = np.asarray(folds)
        if fold.shape != scores.shape or len(np.unique(fold)) < 2:
            raise EvaluationError(
                f"folds: expected one number for each of {len(scores)} pairs and at least two "
                f"different ones, got shape {fold.shape}"
            )
    accuracy, thresholds = [], []
    correct = np.zeros(len(scores), dtype=bool)
    for number in np.unique(fold):
        test = fold == number
        threshold = _best_threshold(scores[~test], same[~test])
        correct[test] = (scores[test] > threshold) == same[test]
        accuracy.append(correct[test].mean())
        thresholds.append(threshold)
    return KFold(accuracy=np.array(accuracy), thresholds=np.array(thresholds), correct=correct)


# ---- parts ---------------------------------------------------------------------------------------


def _best_threshold(scores: FloatArray64, same: BoolArray) -> float:
    """Midway between the two distinct scores where most pairs come out right; highest if tied."""
    values, place = np.unique(scores[np.isfinite(scores)], return_inverse=True)
    if len(values) == 0:
        return -np.inf
    genuine = np.bincount(place, weights=same[np.isfinite(scores)], minlength=len(values))
    impostor = np.bincount(place, minlength=len(values)) - genuine
    # Threshold number i accepts values[i:]; the last accepts none, the first every finite score.
    accepted = np.concatenate([np.cumsum((genuine - impostor)[::-1])[::-1], [0]])
    best = len(values) - int(np.argmax(accepted[::-1]))
    if best == 0:
        return -np.inf
    if best == len(values):
        return float(values[-1])
    return float(values[best - 1] + (values[best] - values[best - 1]) / 2)


def _share_above(scores: Scores, thresholds: FloatArray64) -> FloatArray64:
    below = np.searchsorted(np.sort(scores), thresholds, side="right")
    return (len(scores) - below) / len(scores)


def _rates(far: float | Sequence[float]) -> Sequence[float]:
    return far if isinstance(far, Sequence) else [far]


def checked(scores: Scores, what: str) -> Scores:
    """(N,) numbers or −∞, at least one; anything else is an error that names `what`."""
    scores = np.asarray(scores)
    if scores.ndim != 1 or len(scores) == 0:
        raise EvaluationError(f"{what} scores: expected (N,) with N > 0, got {scores.shape}")
    if scores.dtype.kind != "f":
        raise EvaluationError(f"{what} scores: expected floats, got {scores.dtype}")
    bad = np.isnan(scores) | (scores == np.inf)
    if bad.any():
        raise EvaluationError(
            f"{int(bad.sum())} of {len(scores)} {what} scores are NaN or +inf, first at "
            f"{int(np.flatnonzero(bad)[0])}; a pair without a face scores -inf"
        )
    return scores
