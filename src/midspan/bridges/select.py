"""Fit the bridge that retrieves best on pairs it has not seen, and say why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from midspan.bridges.base import Bridge, Float64, Pairs
from midspan.bridges.compare import NAN, SOLVED, Candidate, Trial, made
from midspan.bridges.race import Runner, lead, race
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
    """The chosen bridge, fitted on all pairs, and the evidence.

    Example:
        See `fit_auto`, which returns one.
    """

    bridge: Bridge
    chosen: str
    why: str
    metric: str
    tried: tuple[Tried, ...]

    def __repr__(self) -> str:
        return f"Selection({self.chosen} of {len(self.tried)} tried: {self.bridge!r})"


def fit_auto(
    source: Embeddings,
    target: Embeddings,
    *,
    candidates: Sequence[Candidate] = SOLVED,
    folds: int = 3,
    seed: int = 0,
    progress: bool = False,
) -> Selection:
    """Cross-validated retrieval over the candidates; the best is fitted on all pairs.

    The choice is made as in `compare_bridges`: by held-out classes if there are labels.

    Candidates that are more than three standard errors behind the leader after a fold, or map
    exactly as an earlier one, are dropped. Name the candidates from simple to rich: an earlier one
    wins if the best is less than one standard error (of the paired differences) ahead of it.

    Args:
        source: Vectors in the space to map from.
        target: Vectors of the same items in the space to map to.
        candidates: Names from `BRIDGES`, or mappings of name and settings, from simple to rich.
        folds: Parts of the cross-validation.
        seed: Of the folds.
        progress: Whether to report each fold.

    Returns:
        The chosen bridge, its name, and why.

    Raises:
        EvaluationError: Too few pairs to hold any out, or no candidates.
        VectorError: No candidate could be fitted.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> chosen = ms.bridges.fit_auto(old, new, candidates=["procrustes", "ridge"])
        >>> chosen.chosen
        'ridge'
    """
    if not candidates:
        raise EvaluationError("no candidates were given; name some, such as 'ridge'")
    pairs = Pairs.of(source, target)
    trial = Trial(pairs, folds=folds, seed=seed)
    raced = race(trial, candidates, label="choose a bridge", drop=True, progress=progress)
    values = [None if one.note else one.values for one in raced]
    running = [place for place, one in enumerate(raced) if not one.note and not one.dropped]
    tried = [_tried(one, trial) for one in raced]
    place, why = _decide(values, tried, trial, running=running)
    return Selection(
        bridge=made(candidates[place]).fit_pairs(pairs),
        chosen=tried[place].name,
        why=why,
        metric=trial.metric_name,
        tried=tuple(tried),
    )


def _decide(
    values: Sequence[Float64 | None],
    tried: Sequence[Tried],
    trial: Trial,
    *,
    running: Sequence[int],
) -> tuple[int, str]:
    if not running:
        raise VectorError(f"no candidate could be fitted; {tried[0].name}: {tried[0].note}")
    best = max(running, key=lambda place: tried[place].score)
    kept = f"{trial.metric_name} on held-out pairs, {tried[best].retention:.1%} of the true new one"
    for place in running:
        if place == best:
            break
        ahead, error = _lead(values, best, place, trial)
        if ahead < error:
            return place, (
                f"{tried[place].name}: {tried[best].name} is ahead by only {ahead:.4f} ± "
                f"{error:.4f} in {kept}; the simpler one is taken"
            )
    others = [place for place, one in enumerate(values) if one is not None and place != best]
    if not others:
        return best, f"{tried[best].name}: the only candidate that could be fitted; {kept}"
    # By the queries that both have: a dropped candidate has no scores of the other folds.
    second = min(others, key=lambda place: _lead(values, best, place, trial)[0])
    ahead, error = _lead(values, best, second, trial)
    return best, (
        f"{tried[best].name}: best {kept}, ahead of {tried[second].name} "
        f"by {ahead:.4f} ± {error:.4f}"
    )


def _tried(one: Runner, trial: Trial) -> Tried:
    if one.note:
        return Tried(one.name, NAN, NAN, NAN, note=one.note)
    ran = np.isfinite(one.values)
    score = float(one.values[ran].mean())
    note = (
        f"dropped after {one.folds} of {len(trial.parts)} folds: {one.dropped}"
        if one.dropped
        else ""
    )
    return Tried(one.name, score, score / float(trial.true_values[ran].mean()), one.seconds, note)


def _lead(
    values: Sequence[Float64 | None], best: int, other: int, trial: Trial
) -> tuple[float, float]:
    ahead, behind = values[best], values[other]
    assert ahead is not None
    assert behind is not None
    return lead(ahead, behind, trial.groups)
