"""Mixed ranking: one scale for the scores of refreshed and not yet refreshed items.

Two new vectors of one class are often nearer than a new and an old one, so an item that is not yet
refreshed sinks below worse ones that are; with some bridges it is the other way round. What puts
two items in the right order is not the score but what it says: how probable a match is. So a line
is fitted that gives a score of the old part the new score with the same odds of a match. To make
the scores themselves agree (their distributions, or the expected score) is not enough: with a ridge
bridge, whose vectors are drawn to the mean, that ranks worse than scores as they are.

Whether it is worth the second search is decided on queries that the line was not fitted on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.bridges import Bridge, ScoreMap
from midspan.errors import EvaluationError
from midspan.spaces import Column, Embeddings
from midspan.upgrade.scores import (
    Bools,
    Float64,
    average_precisions,
    mixed_ranking,
    part_scores,
)

SAMPLE = 600  # items whose scores are compared, all with all
FEWEST = 20  # items in common
DOUBT = 2.0  # standard errors by which a map must rank better over all
HINT = 1.0  # standard errors at one share of refreshed items that are enough to say it is worse
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the items that are refreshed while maps are tried out
SHIFTS = (-0.5, -0.25, 0.25, 0.5)  # of the line, in standard deviations of the scores of no matches
NEIGHBOURS = 3  # without labels two items match if each is among the nearest three of the other
BEYOND = 10  # the line goes on so many times the range of the scores on either side

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mixing:
    """What was tried, how well it ranked, and the map that is left: None for plain scores.

    chosen: "plain", "odds" (of a match by labels) or "neighbours" (without labels; not tried out).
    """

    chosen: str
    quality: Mapping[str, float]
    scores: ScoreMap | None

    def evidence(self) -> dict[str, Any]:
        return {"chosen": self.chosen, "quality": dict(self.quality)}


@dataclass(frozen=True, slots=True)
class _Sample:
    """(N, N) scores of each new vector as a query, on both parts, and which pairs match."""

    stale: Float64
    fresh: Float64
    matches: Bools
    place: Float64  # (N,) each item's place in the backfill, 0 to 1
    waits: (
        Float64  # (N,) share of the backfill that it is in the old part; 0.5 if any order will do
    )


@dataclass(frozen=True, slots=True)
class _Line:
    start: float
    slope: float

    def __call__(self, scores: npt.NDArray[np.floating]) -> Float64:
        return np.asarray(self.start + self.slope * scores, dtype=np.float64)


def choose_scores(
    old: Embeddings,
    new: Embeddings,
    *,
    bridge: Bridge | None = None,
    labels: Column | None = None,
    priorities: Float64 | None = None,
    plain: bool = True,
    seed: int = 0,
) -> Mixing:
    """Plain scores, or a map of those of the old part: what ranks best on queries held out.

    Half of the queries fit the map, the other half try it out on mixed galleries, and in turn.
    Quality is the mean average precision by `labels` (one for each row of `new`). Plain scores stay
    unless the map is better beyond doubt and worse at no share of refreshed items. Without labels
    nothing can be tried out: the map is that of neighbours in the new space.
    bridge: as in `part_scores`; the sample should be none of the pairs that it was fitted on.
    priorities: (N,) of the rows of `new`, in the upgrade's order: what is refreshed first matters.
    Default: any order.
    plain: False if the scores of the two parts are of different kinds.
    """
    sample = _sample(old, new, bridge=bridge, labels=labels, priorities=priorities, seed=seed)
    everyone = np.arange(len(sample.place))
    if labels is None:
        return Mixing("neighbours", {}, _as_map(_fit(sample, everyone), sample))
    if not plain:
        return Mixing("odds", {}, _as_map(_shifted(sample, everyone), sample))
    before = _qualities(sample, everyone, None)  # (S, N)
    quality = {"plain": _mean(before)}
    halves = np.array_split(np.random.default_rng(seed + 1).permutation(everyone), 2)
    after = np.full_like(before, np.nan)
    try:
        for fitted, tried in (halves, halves[::-1]):
            line = _shifted(sample, fitted)
            after[:, tried] = _qualities(sample, tried, line)
        chosen = _shifted(sample, everyone)
    except EvaluationError:  # no matches, or scores that do not know them
        return Mixing("plain", quality, None)
    quality["odds"] = _mean(after)
    gains = after - before
    worse = any(_surely_more(-at_share, doubt=HINT) for at_share in gains)
    if worse or not _surely_more(gains.mean(axis=0)):
        return Mixing("plain", quality, None)
    return Mixing("odds", quality, _as_map(chosen, sample))


def fit_scores(
    old: Embeddings,
    new: Embeddings,
    *,
    bridge: Bridge | None = None,
    labels: Column | None = None,
    seed: int = 0,
) -> ScoreMap:
    """The line alone, neither shifted nor tried out."""
    sample = _sample(old, new, bridge=bridge, labels=labels, seed=seed)
    return _as_map(_fit(sample, np.arange(len(sample.place))), sample)


def match_odds(
    scores: Float64, matches: Bools, weights: Float64 | None = None
) -> tuple[float, float]:
    """(a, b) of log odds = a + b·score, by maximum likelihood (Platt 1999, with his targets).

    The targets, (m + 1)/(m + 2) for m matches, keep b finite where scores part them cleanly.
    """
    from scipy.optimize import minimize

    count = int(matches.sum())
    others = len(matches) - count
    if not count or not others:
        raise EvaluationError(
            f"{count} of {len(matches)} pairs match; odds want some that do and some that do not"
        )
    shares = np.ones(len(scores)) if weights is None else weights
    shares = shares / shares.sum()
    middle, width = float(scores.mean()), float(scores.std()) or 1.0
    x = (scores - middle) / width
    target = np.where(matches, (count + 1) / (count + 2), 1 / (others + 2))

    def loss(at: Float64) -> tuple[float, Float64]:
        logits = at[0] + at[1] * x
        miss = shares * (1 / (1 + np.exp(-np.clip(logits, -500, 500))) - target)
        value = (shares * (np.logaddexp(0, logits) - target * logits)).sum()
        return float(value), np.array([miss.sum(), (miss * x).sum()])

    begin = np.array([np.log(count / others), 1.0])
    a, b = minimize(loss, begin, jac=True, method="BFGS").x
    return float(a - b * middle / width), float(b / width)


def _sample(
    old: Embeddings,
    new: Embeddings,
    *,
    bridge: Bridge | None,
    labels: Column | None,
    priorities: Float64 | None = None,
    seed: int,
) -> _Sample:
    if labels is not None:
        new = new.with_columns({"labels": labels})
    ordered = priorities is not None
    if priorities is None:
        priorities = np.random.default_rng(seed + 2).random(len(new))
    new = new.with_columns({"priority": priorities})
    old, new = old.paired_with(new)
    if len(old) < FEWEST:
        raise EvaluationError(
            f"{len(old)} items have both vectors; a calibration wants {FEWEST} or more: give a "
            "larger sample of new vectors"
        )
    rows = np.random.default_rng(seed).permutation(len(old))[:SAMPLE]
    stale, fresh = (part.astype(np.float64) for part in part_scores(old[rows], new[rows], bridge))
    if labels is not None:
        known = new.columns["labels"][rows]
        matches = known[:, None] == known[None, :]
    else:
        near = _nearest(fresh)
        matches = near & near.T
    np.fill_diagonal(matches, val=False)
    ranked = np.argsort(-new.columns["priority"][rows], kind="stable")
    place = np.empty(len(rows))
    place[ranked] = np.arange(len(rows)) / len(rows)
    waits = place + 0.5 / len(rows) if ordered else np.full(len(rows), 0.5)
    return _Sample(stale, fresh, matches, place, waits)


def _nearest(fresh: Float64) -> Bools:
    """(N, N) is the column among the NEIGHBOURS nearest to the row, itself left out?"""
    others = fresh.copy()
    np.fill_diagonal(others, -np.inf)
    found = np.zeros(fresh.shape, dtype=bool)
    best = np.argsort(-others, axis=1, kind="stable")[:, :NEIGHBOURS]
    np.put_along_axis(found, best, values=True, axis=1)
    return found


def _fit(sample: _Sample, rows: Rows) -> _Line:
    """By the queries of these rows: equal odds before and after.

    An item counts for the old part as long as it will be in it, and for the new part after that:
    what an order leaves for the end is of another kind than what it takes first.
    """
    apart = rows[:, None] != np.arange(len(sample.place))
    matches = sample.matches[rows][apart]
    waits = np.broadcast_to(sample.waits, apart.shape)[apart]
    stale = match_odds(sample.stale[rows][apart], matches, waits)
    fresh = match_odds(sample.fresh[rows][apart], matches, 1 - waits)
    if min(stale[1], fresh[1]) <= 0:
        raise EvaluationError("matches do not score higher than others: there is no scale to find")
    return _Line((stale[0] - fresh[0]) / fresh[1], stale[1] / fresh[1])


def _shifted(sample: _Sample, rows: Rows) -> _Line:
    """The line, moved up or down if that surely ranks these queries better.

    The odds of a pair in the middle of all are fitted best, the first results stand at the end.
    """
    line = _fit(sample, rows)
    step = float(sample.fresh[rows][~sample.matches[rows]].std())
    moved = [_Line(line.start + shift * step, line.slope) for shift in SHIFTS]
    straight = _qualities(sample, rows, line).mean(axis=0)
    tried = [_qualities(sample, rows, other).mean(axis=0) for other in moved]
    best = int(np.argmax([_mean(values) for values in tried]))
    return moved[best] if _surely_more(tried[best] - straight) else line


def _qualities(sample: _Sample, rows: Rows, line: _Line | None) -> Float64:
    """(S, rows) average precision of each query at each of SHARES."""
    stale, fresh, matches = sample.stale[rows], sample.fresh[rows], sample.matches[rows]
    if line is not None:
        stale = line(stale)
    return np.stack(
        [
            average_precisions(mixed_ranking(stale, fresh, sample.place < share, own=rows), matches)
            for share in SHARES
        ]
    )


def _as_map(line: _Line, sample: _Sample) -> ScoreMap:
    """Two knots far outside, between which the map is the line."""
    low, high = float(sample.stale.min()), float(sample.stale.max())
    reach = BEYOND * max(high - low, 1e-6)
    made = ScoreMap(knots=2)
    made.x_ = np.array([low - reach, high + reach])
    made.y_ = line(made.x_)
    return made


def _mean(values: Float64) -> float:
    """Of the queries that have something to find; 0 if none has."""
    answered = values[np.isfinite(values)]
    return float(answered.mean()) if len(answered) else 0.0


def _surely_more(gains: Float64, *, doubt: float = DOUBT) -> bool:
    """More than nothing by so many standard errors: it cannot well be chance."""
    gains = gains[np.isfinite(gains)]
    if len(gains) < 2:
        return False
    return bool(gains.mean() > doubt * gains.std(ddof=1) / np.sqrt(len(gains)))
