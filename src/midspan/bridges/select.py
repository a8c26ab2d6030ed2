"""Fit the bridge that retrieves best on pairs it has not seen, and say why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from midspan import progress as progress_bar
from midspan.bridges.base import Bridge, Float64, Pairs
from midspan.bridges.compare import NAN, SOLVED, Candidate, Trial, made, title
from midspan.errors import EvaluationError, VectorError
from midspan.spaces import Embeddings


@dataclass(frozen=True, slots=True)
class Tried:
    name: str
    score: float  # NaN if it could not be fitted
    retention: float
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen bridge, fitted on all pairs, and the evidence."""

    bridge: Bridge
    chosen: str
    why: str
    metric: str
    tried: tuple[Tried, ...]


def fit_auto(
    source: Embeddings,
    target: Embeddings,
    *,
    candidates: Sequence[Candidate] = SOLVED,
    folds: int = 5,
    seed: int = 0,
    progress: bool = False,
) -> Selection:
    """Cross-validated retrieval over the candidates; the best is fitted on all pairs.

    The choice is made as in `compare_bridges`: by held-out classes if there are labels.

    Name the candidates from simple to rich: an earlier one wins if the best is less than one
    standard error (of the paired differences) ahead of it.
    """
    if not candidates:
        raise EvaluationError("no candidates were given; name some, such as 'ridge'")
    pairs = Pairs.of(source, target)
    trial = Trial(pairs, folds=folds, seed=seed)
    true = float(np.nanmean(trial.true_values))
    found: list[Float64 | None] = []
    tried: list[Tried] = []
    label = "choose a bridge"
    with progress_bar.bar(label, total=len(candidates), unit="bridges", show=progress) as done:
        for candidate in candidates:
            try:
                values, seconds = trial.values(candidate)
                score = float(np.nanmean(values))
                found.append(values)
                tried.append(Tried(title(candidate), score, score / true, seconds))
            except VectorError as error:
                found.append(None)
                tried.append(Tried(title(candidate), NAN, NAN, NAN, note=str(error)))
            done(1)
    place, why = _decide(found, tried, trial)
    return Selection(
        bridge=made(candidates[place]).fit(pairs.source, pairs.target),
        chosen=tried[place].name,
        why=why,
        metric=trial.metric_name,
        tried=tuple(tried),
    )


def _decide(
    found: Sequence[Float64 | None], tried: Sequence[Tried], trial: Trial
) -> tuple[int, str]:
    usable = [place for place, values in enumerate(found) if values is not None]
    if not usable:
        raise VectorError(f"no candidate could be fitted; {tried[0].name}: {tried[0].note}")
    best = max(usable, key=lambda place: tried[place].score)
    kept = f"{trial.metric_name} on held-out pairs, {tried[best].retention:.1%} of the true new one"
    for place in usable:
        if place == best:
            break
        ahead, error = _lead(found[best], found[place], trial)
        if ahead < error:
            return place, (
                f"{tried[place].name}: {tried[best].name} is ahead by only {ahead:.4f} ± "
                f"{error:.4f} in {kept}; the simpler one is taken"
            )
    others = [place for place in usable if place != best]
    if not others:
        return best, f"{tried[best].name}: the only candidate that could be fitted; {kept}"
    second = max(others, key=lambda place: tried[place].score)
    ahead, error = _lead(found[best], found[second], trial)
    return best, (
        f"{tried[best].name}: best {kept}, ahead of {tried[second].name} "
        f"by {ahead:.4f} ± {error:.4f}"
    )


def _lead(best: Float64 | None, other: Float64 | None, trial: Trial) -> tuple[float, float]:
    """Mean paired difference and its standard error over groups (classes or queries)."""
    assert best is not None
    assert other is not None
    _, places = np.unique(trial.groups, return_inverse=True)
    gap = best - other
    usable = np.isfinite(gap)
    sums = np.bincount(places[usable], weights=gap[usable])
    counts = np.bincount(places[usable])
    means = sums[counts > 0] / counts[counts > 0]
    error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0
    return float(gap[usable].mean()), error
