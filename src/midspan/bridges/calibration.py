"""One threshold and one merged ranking across spaces: monotone maps of scores.

A score of 0.7 between a new query and a mapped old item is not a score of 0.7 between two new
ones. A `ScoreMap` turns the first kind into the second, without changing any order inside it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from midspan.bridges.base import Bridge, Float64, Pairs, unit
from midspan.bridges.retrieval import scores
from midspan.deprecation import warn_renamed
from midspan.errors import EvaluationError, FormatError, RunError
from midspan.spaces import Embeddings

FORMAT = "midspan-score-map"
LEAST_SLOPE = 1e-6  # keeps different scores different


class ScoreMap:
    """A strictly increasing, piecewise linear map of scores.

    `quantile`: each quantile goes to the same quantile, half of the knots in the upper tail where
    thresholds lie; the distributions agree afterwards, so a threshold lets the same share through
    and lists merge evenly. `isotonic`: least squares under the order constraint (Barlow 1972) on
    pairs of scores of the same two items: the *expected* score after the change, which is drawn to
    the mean, so that uncertain scores fall behind certain ones.
    Beyond the scores that were seen the map continues with slope 1.

    Args:
        method: "quantile" or "isotonic".
        knots: Of the piecewise linear map.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> before = np.linspace(0, 1, 200)
        >>> scores = ms.bridges.ScoreMap().fit(before, 2 * before + 1)
        >>> np.round(scores(np.array([0.5])), 2)
        array([2.])
    """

    def __init__(
        self, *, method: Literal["quantile", "isotonic"] = "quantile", knots: int = 100
    ) -> None:
        self.method = method
        self.knots = knots
        self.x_: Float64 = np.array([])
        self.y_: Float64 = np.array([])

    def fit(self, before: npt.NDArray[Any], after: npt.NDArray[Any]) -> Self:
        """`before` are the scores to be mapped, `after` what they should become."""
        before = np.asarray(before, dtype=np.float64).ravel()
        after = np.asarray(after, dtype=np.float64).ravel()
        if len(before) < 10 or len(after) < 10:
            raise EvaluationError(
                f"{len(before)} and {len(after)} scores are too few for a calibration; give 10+"
            )
        if not (np.isfinite(before).all() and np.isfinite(after).all()):
            raise EvaluationError("scores hold NaN or infinite values; remove them first")
        if self.method == "quantile":
            rarest = 1.0 / min(len(before), len(after))
            tail = 1.0 - np.geomspace(0.05, rarest, self.knots // 2)
            shares = np.concatenate(
                [np.linspace(0.0, 0.95, self.knots - len(tail)), tail[1:], [1.0]]
            )
            x, y = np.quantile(before, shares), np.quantile(after, shares)
        else:
            if len(before) != len(after):
                raise EvaluationError(
                    f"isotonic: expected pairs of scores, got {len(before)} and {len(after)}; "
                    "use method='quantile' for scores of different items"
                )
            x, y = _isotonic_knots(before, after, self.knots)
        self.x_, self.y_ = _increasing(x, y)
        return self

    def __call__(self, values: npt.NDArray[Any]) -> Float64:
        if not len(self.x_):
            raise RunError("this score map is not fitted yet; call fit(before, after)")
        values = np.asarray(values, dtype=np.float64)
        beyond = np.minimum(values - self.x_[0], 0.0) + np.maximum(values - self.x_[-1], 0.0)
        mapped: Float64 = np.interp(values, self.x_, self.y_) + beyond
        return mapped

    def inverse(self, values: npt.NDArray[Any]) -> Float64:
        """Which score before gives this one after: turns a threshold round."""
        turned = ScoreMap(method=self.method, knots=self.knots)
        turned.x_, turned.y_ = self.y_, self.x_
        return turned(values)

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        document = {
            "format": FORMAT,
            "method": self.method,
            "knots": self.knots,
            "x": self.x_.tolist(),
            "y": self.y_.tolist(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> ScoreMap:
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            if document["format"] != FORMAT:
                raise ValueError(f"format is {document['format']!r}")
            made = cls(method=document["method"], knots=int(document["knots"]))
            made.x_, made.y_ = np.array(document["x"], float), np.array(document["y"], float)
            if len(made.x_) < 2 or np.any(np.diff(made.x_) <= 0) or np.any(np.diff(made.y_) <= 0):
                raise ValueError("the knots do not increase")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path}: not a score map ({error})") from error
        return made


def _isotonic_knots(before: Float64, after: Float64, knots: int) -> tuple[Float64, Float64]:
    from scipy.optimize import isotonic_regression

    x, places, counts = np.unique(before, return_inverse=True, return_counts=True)
    means = np.bincount(places, weights=after) / counts
    fitted = isotonic_regression(means, weights=counts).x
    # Means of equal parts: few knots, and plateaus become slopes between their middles.
    parts = np.array_split(np.arange(len(x)), max(1, min(knots, len(x), len(before) // 5)))
    return (
        np.array([np.average(x[part], weights=counts[part]) for part in parts]),
        np.array([np.average(fitted[part], weights=counts[part]) for part in parts]),
    )


def _increasing(x: Float64, y: Float64) -> tuple[Float64, Float64]:
    keep = np.concatenate([[True], np.diff(x) > 1e-12])
    x, y = x[keep], y[keep]
    if len(x) < 2:
        raise EvaluationError("all scores are the same: there is nothing to calibrate")
    steps = np.maximum(np.diff(y), LEAST_SLOPE * np.diff(x))
    return x, y[0] + np.concatenate([[0.0], np.cumsum(steps)])


def calibrate(
    bridge: Bridge,
    source: Embeddings,
    target: Embeddings,
    *,
    method: Literal["quantile", "isotonic"] = "quantile",
    knots: int = 100,
    seed: int = 0,
) -> ScoreMap:
    """Scores (new query, mapped old item) → scores (new query, true new item).

    Give pairs that the bridge was **not** fitted on: on its own pairs it looks better than it is.
    Every held-out item asks every other one, at most 2,000 of them.

    Args:
        bridge: A fitted map from the space of `source` to that of `target`.
        source: Old vectors of items that the bridge was not fitted on.
        target: New vectors of the same items.
        method: "quantile" matches the distributions, "isotonic" the expected score.
        knots: Points of the piecewise linear map.
        seed: Of the items drawn.

    Returns:
        The map of scores; call it with an array, or use `.inverse`.

    Raises:
        EvaluationError: Too few scores, or scores that are all the same.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.fit_bridge(old[:200], new[:200])
        >>> scores = ms.bridges.calibrate(bridge, old[200:], new[200:])
        >>> scores(np.array([0.9, 0.1])).shape
        (2,)
    """
    held = Pairs.of(source, target)
    metric = bridge.target.metric
    mapped = bridge.transform(held.source).vectors
    true = unit(held.target.vectors) if metric == "cosine" else held.target.vectors
    size = min(len(held), 2000)
    rows = np.random.default_rng(seed).permutation(len(held))[:size]
    now, then = scores(true[rows], mapped[rows], metric), scores(true[rows], true[rows], metric)
    apart = ~np.eye(size, dtype=bool)
    return ScoreMap(method=method, knots=knots).fit(now[apart], then[apart])


@dataclass(frozen=True, slots=True)
class Threshold:
    """Accept a match if its score is above `value`."""

    value: float
    false_accept_rate: float  # measured, on the impostor scores that were given
    target_rate: float  # today's
    false_accepts: int
    impostors: int

    @property
    def wanted_rate(self) -> float:
        """The old name of `target_rate`."""
        warn_renamed("Threshold.wanted_rate", "target_rate")
        return self.target_rate

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def keep_false_accept_rate(
    *, threshold: float, impostors_today: npt.NDArray[Any], impostors_after: npt.NDArray[Any]
) -> Threshold:
    """The threshold after a change that lets no more impostors in than today's does.

    Impostor scores are those between items of different classes. With k = ⌊rate·n⌋ allowed, the
    threshold is the (k+1)-th largest score after the change, and a match must be above it.

    Args:
        threshold: Today's threshold.
        impostors_today: Scores between items of different classes, as they are today.
        impostors_after: Scores of such pairs after the change.

    Returns:
        The threshold, with the rates that were measured.

    Raises:
        EvaluationError: There are no scores, or some are NaN or infinite.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> today = np.linspace(0, 1, 1001)
        >>> kept = ms.bridges.keep_false_accept_rate(
        ...     threshold=0.9, impostors_today=today, impostors_after=today / 2)
        >>> round(kept.value, 3)
        0.45
    """
    today = np.asarray(impostors_today, dtype=np.float64).ravel()
    after = np.asarray(impostors_after, dtype=np.float64).ravel()
    if not len(today) or not len(after):
        raise EvaluationError("expected impostor scores from before and after the change, got none")
    if not (np.isfinite(today).all() and np.isfinite(after).all()):
        raise EvaluationError("scores hold NaN or infinite values; remove them first")
    rate = float(np.mean(today > threshold))
    allowed = int(np.floor(rate * len(after) + 1e-9))
    if allowed >= len(after):
        value = float(np.nextafter(after.min(), -np.inf))
    else:
        value = float(np.partition(after, len(after) - 1 - allowed)[len(after) - 1 - allowed])
    accepted = int(np.sum(after > value))
    return Threshold(value, accepted / len(after), rate, accepted, len(after))
