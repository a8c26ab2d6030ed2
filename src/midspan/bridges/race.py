"""All candidates over the same folds, fold by fold; those that cannot win any more are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from midspan import progress as progress_bar
from midspan.bridges.base import Float64
from midspan.errors import VectorError
from midspan.spaces import FloatArray

if TYPE_CHECKING:
    from midspan.bridges.compare import Candidate, Trial

BEHIND = 3.0  # standard errors behind the leader that end a candidate's race
SAME = 1e-5  # difference of coordinates that is rounding in float32


@dataclass(slots=True)
class Runner:
    """A candidate and what it has scored; NaN where it was not tried."""

    name: str
    values: Float64  # (H,)
    mapped: FloatArray  # (H, D) the held-out gallery
    folds: int = 0
    note: str = ""  # why it could not be fitted
    dropped: str = ""  # why it ran no further
    fit_seconds: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Of one fit, the longest: what candidates or folds share counts for the first of them."""
        return float(np.max(self.fit_seconds)) if self.fit_seconds else float("nan")


def race(
    trial: Trial,
    candidates: Sequence[Candidate],
    *,
    label: str,
    drop: bool,
    progress: bool,
) -> list[Runner]:
    """`drop`: after each fold, a candidate clearly behind the leader, or that maps as one named
    before it does, is stopped.

    A leader that is left alone has won.
    """
    from midspan.bridges.compare import title

    field_of = [
        Runner(title(one), np.full(len(trial.rows), np.nan), np.full_like(trial.queries, np.nan))
        for one in candidates
    ]
    total = len(trial.parts) * len(candidates)
    with progress_bar.bar(label, total=total, unit="fits", show=progress) as done:
        for fold, part in enumerate(trial.parts):
            for runner, candidate in zip(field_of, candidates, strict=True):
                if not runner.note and not runner.dropped:
                    try:
                        runner.mapped[part], seconds = trial.mapped_fold(candidate, fold)
                        runner.values[part] = trial.judge_fold(fold, runner.mapped[part])
                        runner.fit_seconds.append(seconds)
                        runner.folds += 1
                    except VectorError as error:
                        runner.note = str(error)
                done(1)
            trial.done_with(fold)
            if drop and fold + 1 < len(trial.parts):
                _drop_behind(field_of, trial)
                if sum(not one.dropped and not one.note for one in field_of) == 1:
                    break  # the winner is known
    return field_of


def lead(best: Float64, other: Float64, groups: np.ndarray) -> tuple[float, float]:
    """Mean paired difference and its standard error over groups (classes or queries)."""
    _, places = np.unique(groups, return_inverse=True)
    gap = best - other
    usable = np.isfinite(gap)
    sums = np.bincount(places[usable], weights=gap[usable])
    counts = np.bincount(places[usable])
    means = sums[counts > 0] / counts[counts > 0]
    error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0
    return float(gap[usable].mean()), error


def _drop_behind(runners: Sequence[Runner], trial: Trial) -> None:
    running = [one for one in runners if not one.note and not one.dropped]
    if len(running) < 2:
        return
    leader = max(running, key=lambda one: float(np.nanmean(one.values)))
    for place, one in enumerate(running):
        ahead, error = lead(leader.values, one.values, trial.groups)
        if ahead > BEHIND * error and error > 0:
            one.dropped = "clearly behind the best"
        elif twin := _twin(one, running[:place]):
            one.dropped = f"it maps as {twin.name} does"


def _twin(runner: Runner, simpler: Sequence[Runner]) -> Runner | None:
    """An earlier candidate with the very same vectors: a correction that corrects nothing."""
    for one in simpler:
        if np.allclose(one.mapped, runner.mapped, rtol=0, atol=SAME, equal_nan=True):
            return one
    return None
