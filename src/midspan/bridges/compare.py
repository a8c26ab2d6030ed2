"""How much of the new encoder's retrieval each bridge keeps, on pairs it was not fitted on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from midspan import progress as progress_bar
from midspan.bridges import BRIDGES
from midspan.bridges.base import Bridge, Float64, Pairs, unit
from midspan.bridges.retrieval import average_precisions, reciprocal_ranks
from midspan.config import build
from midspan.errors import EvaluationError, VectorError
from midspan.spaces import Column, Embeddings, FloatArray, IntArray, Metric

Candidate = str | Mapping[str, Any]  # a name from BRIDGES, or its section of a run file

# Solved, not trained: seconds, and without torch.
SOLVED: tuple[Candidate, ...] = ("procrustes", "ridge", "low_rank", "local", "kernel", "blend")

NAN = float("nan")
HELD_OUT = 2000  # pairs that judge
MOST_PAIRS = 20_000  # pairs that take part at all; more change the order little, and take long


@dataclass(frozen=True, slots=True)
class Row:
    """One bridge in the table; `score` and `retention` are NaN where it could not be fitted."""

    name: str
    score: float  # new queries on the mapped gallery
    retention: float  # score / score on the true new gallery
    low: float  # 95 % bootstrap interval of the retention
    high: float
    seconds: float  # of one fit
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    metric: str  # "mAP by class" or "MRR of the own item"
    true_score: float  # new queries on the true new gallery
    rows: tuple[Row, ...]  # "none" first
    pairs: int
    held_out: int
    folds: int

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise EvaluationError(f"{name!r} is not in this comparison")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_bridges(
    source: Embeddings,
    target: Embeddings,
    *,
    candidates: Sequence[Candidate] = SOLVED,
    folds: int = 5,
    draws: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> Comparison:
    """Cross-validated retention of each candidate, beside no bridge at all.

    With labels whole classes are held out, and other items of the class are wanted (mAP, the
    query's own item left out); without labels each query wants its own item (MRR, which is 1 on
    the true gallery). The interval resamples classes, or queries. Of more than 20,000 pairs a
    random part is used. Each fold is a small gallery, and small galleries are easy: the order of
    the bridges carries over to a large one, the retention is an upper estimate.
    """
    pairs = Pairs.of(source, target)
    trial = Trial(pairs, folds=folds, seed=seed)
    true = trial.true_values
    samples = list(trial.resampled(draws, seed))
    rows = [_row("none", trial.no_bridge(), true, samples=samples, seconds=0.0)]
    label = "compare bridges"
    with progress_bar.bar(label, total=len(candidates), unit="bridges", show=progress) as done:
        for candidate in candidates:
            name = title(candidate)
            try:
                values, seconds = trial.values(candidate)
                rows.append(_row(name, values, true, samples=samples, seconds=seconds))
            except VectorError as error:
                rows.append(Row(name, NAN, NAN, NAN, NAN, NAN, note=str(error)))
            done(1)
    return Comparison(
        metric=trial.metric_name,
        true_score=float(np.nanmean(true)),
        rows=tuple(rows),
        pairs=len(trial.pairs),
        held_out=len(trial.rows),
        folds=len(trial.parts),
    )


def title(candidate: Candidate) -> str:
    if isinstance(candidate, str):
        return candidate
    settings = ", ".join(f"{key}={value}" for key, value in candidate.items() if key != "name")
    return f"{candidate.get('name')}({settings})" if settings else str(candidate.get("name"))


def made(candidate: Candidate) -> Bridge:
    section = {"name": candidate} if isinstance(candidate, str) else candidate
    bridge: Bridge = build(BRIDGES, section, what="bridge")
    return bridge


class Trial:
    """The held-out pairs and folds that all candidates share, so that differences are paired."""

    def __init__(self, pairs: Pairs, *, folds: int, seed: int) -> None:
        if folds < 2:
            raise EvaluationError(f"{folds} folds leave nothing to fit on; use 2 or more")
        rng = np.random.default_rng(seed)
        if len(pairs) > MOST_PAIRS:
            pairs = pairs.part(np.sort(rng.choice(len(pairs), MOST_PAIRS, replace=False)))
        self.pairs = pairs
        labels = pairs.labels
        groups: Column = np.arange(len(pairs))
        if labels is not None and len(np.unique(labels)) >= 2 * folds:
            groups = np.unique(labels, return_inverse=True)[1]
        else:
            labels = None
        self.rows, self.parts = _folds(groups, folds, rng)
        self.groups = groups[self.rows]
        self.labels = None if labels is None else labels[self.rows]
        space = pairs.target.space
        vectors = pairs.target.vectors[self.rows]
        self.metric: Metric = space.metric
        self.queries: FloatArray = unit(vectors) if space.metric == "cosine" else vectors
        self.true_values = self._judge(self.queries)

    @property
    def metric_name(self) -> str:
        return "MRR of the own item" if self.labels is None else "mAP by class"

    def _judge(self, gallery: FloatArray) -> Float64:
        """(H,) one value a query; each fold is a gallery of its own.

        In one gallery of all folds the items of the others would be drawn to this query, because
        the maps that placed them were fitted on it.
        """
        found = np.empty(len(self.rows))
        for part in self.parts:
            queries, mapped = self.queries[part], gallery[part]
            if self.labels is None:
                found[part] = reciprocal_ranks(queries, mapped, self.metric)
            else:
                found[part] = average_precisions(queries, mapped, self.labels[part], self.metric)
        return found

    def no_bridge(self) -> Float64:
        """Old vectors as they are; dims that one side lacks count as zero."""
        space = self.pairs.source.space
        vectors = self.pairs.source.vectors[self.rows]
        gallery = np.zeros_like(self.queries)
        shared = min(vectors.shape[1], gallery.shape[1])
        gallery[:, :shared] = (unit(vectors) if space.metric == "cosine" else vectors)[:, :shared]
        return self._judge(unit(gallery) if self.metric == "cosine" else gallery)

    def values(self, candidate: Candidate) -> tuple[Float64, float]:
        """(H,) values on the held-out mapped gallery, and the seconds of one fit."""
        mapped = np.empty_like(self.queries)
        seconds = 0.0
        for part in self.parts:
            fit = self.pairs.part(np.setdiff1d(np.arange(len(self.pairs)), self.excluded(part)))
            started = time.perf_counter()
            bridge = made(candidate).fit(fit.source, fit.target)
            seconds += time.perf_counter() - started
            mapped[part] = bridge.transform(self.pairs.source[self.rows[part]]).vectors
        return self._judge(mapped), seconds / len(self.parts)

    def excluded(self, part: IntArray) -> IntArray:
        """Rows of all pairs that the fit of this part may not see: its whole classes."""
        if self.labels is None:
            return self.rows[part]
        assert self.pairs.labels is not None
        return np.flatnonzero(np.isin(self.pairs.labels, self.labels[part]))

    def resampled(self, draws: int, seed: int) -> Iterator[IntArray]:
        """Rows of bootstrap samples, whole groups at a time."""
        rng = np.random.default_rng(seed)
        members = [np.flatnonzero(self.groups == group) for group in np.unique(self.groups)]
        if len(members) == len(self.groups):
            for _ in range(draws):
                yield rng.integers(len(self.groups), size=len(self.groups))
            return
        for _ in range(draws):
            picked = rng.integers(len(members), size=len(members))
            yield np.concatenate([members[group] for group in picked])


def _folds(groups: Column, folds: int, rng: np.random.Generator) -> tuple[IntArray, list[IntArray]]:
    """Held-out rows, and which of them each fold maps; a group is never cut in two."""
    order = rng.permutation(np.unique(groups))
    rows_of = [np.flatnonzero(np.isin(groups, order[fold::folds])) for fold in range(folds)]
    most = max(1, HELD_OUT // folds)
    rows_of = [np.sort(rng.permutation(rows)[:most]) for rows in rows_of if len(rows)]
    parts, start = [], 0
    for rows in rows_of:
        parts.append(np.arange(start, start + len(rows)))
        start += len(rows)
    return np.concatenate(rows_of), parts


def _row(
    name: str, values: Float64, true: Float64, *, samples: Sequence[IntArray], seconds: float
) -> Row:
    ratios = [np.nanmean(values[rows]) / np.nanmean(true[rows]) for rows in samples]
    low, high = np.quantile(ratios, [0.025, 0.975]) if ratios else (np.nan, np.nan)
    return Row(
        name=name,
        score=float(np.nanmean(values)),
        retention=float(np.nanmean(values) / np.nanmean(true)),
        low=float(low),
        high=float(high),
        seconds=seconds,
    )
