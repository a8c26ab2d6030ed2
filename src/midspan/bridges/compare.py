"""How much of the new encoder's retrieval each bridge keeps, on pairs it was not fitted on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from midspan.bridges import BRIDGES
from midspan.bridges.base import Bridge, Float64, Fold, Pairs, unit
from midspan.bridges.race import race
from midspan.bridges.retrieval import average_precisions, reciprocal_ranks
from midspan.config import build
from midspan.errors import EvaluationError
from midspan.html_table import html_table
from midspan.spaces import Column, Embeddings, FloatArray, IntArray, Metric

Candidate = str | Mapping[str, Any]  # a name from BRIDGES, or its section of a run file

# Solved, not trained: seconds, and without torch.
SOLVED: tuple[Candidate, ...] = ("procrustes", "ridge", "low-rank", "local", "kernel", "blend")

NAN = float("nan")
HELD_OUT = 2000  # pairs that judge
FEWEST_FOLDS = 2  # with fewer than two classes for each of them, pairs are held out instead
MOST_PAIRS = 20_000  # pairs that take part at all; more change the order little, and take long


@dataclass(frozen=True, slots=True)
class Row:
    """One bridge in the table; `score` and `retention` are NaN where it could not be fitted."""

    name: str
    score: float  # new queries on the mapped gallery
    retention: float  # score / score on the true new gallery, at `measured_at` items
    low: float  # 95 % bootstrap interval of the retention
    high: float
    estimate: float  # of the retention at `gallery_size` items
    estimate_low: float
    estimate_high: float
    seconds: float  # of one fit
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much of the true new vectors' retrieval each bridge keeps, on held-out pairs.

    Example:
        See `compare_bridges`, which returns one.
    """

    metric: str  # "mAP by class" or "MRR of the own item"
    true_score: float  # new queries on the true new gallery
    rows: tuple[Row, ...]  # "none" first
    pairs: int
    held_out: int
    held_out_by: str  # "classes" or "pairs"
    folds: int
    measured_at: int  # items of a fold, mean
    gallery_size: int  # items that the estimates are for

    def row(self, name: str) -> Row:
        for row in self.rows:
            if row.name == name:
                return row
        raise EvaluationError(f"{name!r} is not in this comparison")

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        kept = [
            f"{row.name} {row.estimate:.1%}" for row in self.rows if row.estimate == row.estimate
        ]
        shown = ", ".join(kept[:4]) + (", …" if len(kept) > 4 else "")
        return (
            f"Comparison({self.metric}; retention at {self.gallery_size:,} items: {shown}; "
            f"{self.pairs:,} pairs)"
        )

    def _repr_html_(self) -> str:
        rows = [
            [
                row.name,
                f"{row.score:.4f}",
                f"{row.retention:.1%}",
                f"{row.estimate:.1%} ({row.estimate_low:.1%} … {row.estimate_high:.1%})",
                row.note,
            ]
            for row in self.rows
        ]
        head = ["bridge", self.metric, f"retention at {self.measured_at:,}"]
        head += [f"estimate at {self.gallery_size:,}", ""]
        note = f"{self.held_out:,} of {self.pairs:,} pairs held out, by {self.held_out_by}"
        return html_table("bridges", rows, head=head, note=note)


def _as_asked(
    source: Embeddings, target: Embeddings, metric: str | None
) -> tuple[Embeddings, Embeddings]:
    """Labels decide what is measured: "mrr" looks away from them, "map" requires them."""
    if metric == "mrr":
        nothing = dict[str, Column]()
        return replace(source, columns=nothing), replace(target, columns=nothing)
    if metric == "map" and source.labels is None and target.labels is None:
        raise EvaluationError("metric = 'map' needs labels; without labels use 'mrr'")
    if metric not in (None, "map"):
        raise EvaluationError(f"metric = {metric!r}; expected 'map' or 'mrr'")
    return source, target


def compare_bridges(
    source: Embeddings,
    target: Embeddings,
    *,
    candidates: Sequence[Candidate] = SOLVED,
    metric: str | None = None,
    folds: int = 5,
    gallery_size: int | None = None,
    draws: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> Comparison:
    """Cross-validated retention of each candidate, and of no bridge at all.

    metric: "map" or "mrr"; by default "map" if there are labels.

    With labels whole classes are held out, and other items of the class are relevant (mAP, the
    query's own item left out); without labels only its own item is (MRR, which is 1 on
    the true gallery). The interval resamples classes, or queries. Of more than 20,000 pairs a
    random part is used.

    Each fold is a small gallery, and small galleries are easy. So `estimate` carries the retention
    over to `gallery_size` items (default: as many as there are pairs), with as many relevant items
    for a query and more of the others: a wrong item above a right one in a fold of n others counts
    as N / n of them. That is exact in expectation for further items of the same kind, but a right
    item that no wrong one has beaten yet stays unbeaten: the estimate is still somewhat high.

    Args:
        source: Vectors in the space to map from.
        target: Vectors of the same items in the space to map to.
        candidates: Names from `BRIDGES`, or mappings of name and settings.
        metric: "map" or "mrr"; by default "map" if there are labels.
        folds: Parts of the cross-validation.
        gallery_size: Items to estimate the retention for.
        draws: Of the bootstrap.
        seed: Of folds and draws.
        progress: Whether to report each fold.

    Returns:
        One row for each candidate; `.to_json()`, and a table in a notebook.

    Raises:
        EvaluationError: Too few pairs to hold any out, or a metric that needs labels.
        ConfigError: There is no such bridge or setting.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> compared = ms.bridges.compare_bridges(old, new, candidates=["procrustes", "ridge"])
        >>> [row.name for row in compared.rows]
        ['none', 'procrustes', 'ridge']
    """
    if gallery_size is not None and gallery_size < 1:
        raise EvaluationError(f"gallery_size = {gallery_size}; expected 1 or more")
    pairs = Pairs.of(*_as_asked(source, target, metric))
    size = gallery_size or len(pairs)
    trial = Trial(pairs, folds=folds, seed=seed)
    judge = Judge(trial, samples=list(trial.resampled(draws, seed)), size=size)
    rows = [judge.row("none", trial.no_bridge(), seconds=0.0)]
    for one in race(trial, candidates, label="compare bridges", drop=False, progress=progress):
        if one.note:
            rows.append(Row(one.name, *(NAN,) * 8, note=one.note))
        else:
            rows.append(judge.row(one.name, one.mapped, seconds=one.seconds))
    return Comparison(
        metric=trial.metric_name,
        true_score=float(np.nanmean(trial.true_values)),
        rows=tuple(rows),
        pairs=len(trial.pairs),
        held_out=len(trial.rows),
        held_out_by="pairs" if trial.labels is None else "classes",
        folds=len(trial.parts),
        measured_at=round(len(trial.rows) / len(trial.parts)),
        gallery_size=size,
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
        if len(pairs) < folds:
            raise EvaluationError(f"{len(pairs)} pairs for {folds} folds; give more pairs")
        rng = np.random.default_rng(seed)
        if len(pairs) > MOST_PAIRS:
            pairs = pairs.part(np.sort(rng.choice(len(pairs), MOST_PAIRS, replace=False)))
        self.pairs = pairs
        labels = pairs.labels
        groups: Column = np.arange(len(pairs))
        if labels is not None and (classes := len(np.unique(labels))) >= 2 * FEWEST_FOLDS:
            groups = np.unique(labels, return_inverse=True)[1]
            folds = min(folds, classes // 2)  # a fold of one class has nothing to confuse
        else:
            labels = None
        self.rows, self.parts = _folds(groups, folds, rng)
        self.groups = groups[self.rows]
        self.labels = None if labels is None else labels[self.rows]
        space = pairs.target.space
        vectors = pairs.target.vectors[self.rows]
        self.metric: Metric = space.metric
        self._folds: dict[int, Fold] = {}
        self.queries: FloatArray = unit(vectors) if space.metric == "cosine" else vectors
        self.true_values = self.judge(self.queries)

    @property
    def metric_name(self) -> str:
        return "MRR of the own item" if self.labels is None else "mAP by class"

    def _times(self, size: int) -> Float64:
        """(H,) so many times the other items of its fold, a query would meet in such a gallery."""
        times = np.ones(len(self.rows))
        for part in self.parts:
            same = np.ones(len(part))
            if self.labels is not None:
                names, counts = np.unique(self.labels[part], return_counts=True)
                same = counts[np.searchsorted(names, self.labels[part])].astype(np.float64)
            others = len(part) - same
            times[part] = np.where(others > 0, (size - same) / np.maximum(others, 1), 1.0)
        return np.maximum(times, 1.0)

    def judge(self, gallery: FloatArray, *, size: int = 0) -> Float64:
        """(H,) one value a query; each fold is a gallery of its own.

        size: as expected in a gallery of so many items; not below what a fold has.

        In one gallery of all folds the items of the others would be drawn to this query, because
        the maps that placed them were fitted on it.
        """
        values, times = np.empty(len(self.rows)), self._times(size)
        for part in self.parts:
            values[part] = self._judge_part(part, gallery[part], times[part])
        return values

    def judge_fold(self, fold: int, mapped: FloatArray) -> Float64:
        """Values of the queries of one fold, in a gallery of its own size."""
        part = self.parts[fold]
        return self._judge_part(part, mapped, np.ones(len(part)))

    def _judge_part(self, part: IntArray, mapped: FloatArray, times: Float64) -> Float64:
        queries = self.queries[part]
        if self.labels is None:
            return reciprocal_ranks(queries, mapped, self.metric, times=times)
        labels = self.labels[part]
        return average_precisions(queries, mapped, labels, self.metric, times=times)

    def no_bridge(self) -> FloatArray:
        """(H, D) old vectors as they are; dims that one side lacks count as zero."""
        space = self.pairs.source.space
        vectors = self.pairs.source.vectors[self.rows]
        gallery = np.zeros_like(self.queries)
        shared = min(vectors.shape[1], gallery.shape[1])
        gallery[:, :shared] = (unit(vectors) if space.metric == "cosine" else vectors)[:, :shared]
        return unit(gallery) if self.metric == "cosine" else gallery

    def values(self, candidate: Candidate) -> tuple[Float64, float]:
        """(H,) values on the held-out mapped gallery, and the seconds of one fit."""
        mapped, seconds = self.mapped(candidate)
        return self.judge(mapped), seconds

    def mapped(self, candidate: Candidate) -> tuple[FloatArray, float]:
        """(H, D) the held-out gallery, mapped by bridges that have not seen it."""
        mapped = np.empty_like(self.queries)
        seconds = 0.0
        for fold, part in enumerate(self.parts):
            mapped[part], took = self.mapped_fold(candidate, fold)
            self.done_with(fold)
            seconds += took
        return mapped, seconds / len(self.parts)

    def mapped_fold(self, candidate: Candidate, fold: int) -> tuple[FloatArray, float]:
        """The gallery of one fold, and the seconds it took to fit and map.

        Candidates share what they have in common of all pairs or of a fold's: the first one pays
        for it.
        """
        part = self.parts[fold]
        if fold not in self._folds:
            self._folds[fold] = Fold(self.pairs, self.excluded(part), self.rows[part])
        started = time.perf_counter()
        mapped = made(candidate).map_left_out(self._folds[fold])
        return mapped, time.perf_counter() - started

    def done_with(self, fold: int) -> None:
        """Forget what the candidates shared: decompositions of one fold at a time are enough."""
        self._folds.pop(fold, None)

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


class Judge:
    """Retention of each mapped gallery, over the same queries and bootstrap samples."""

    def __init__(self, trial: Trial, *, samples: Sequence[IntArray], size: int) -> None:
        self._trial, self._samples, self._size = trial, samples, size
        self._true_there = trial.judge(trial.queries, size=size)

    def row(self, name: str, gallery: FloatArray, *, seconds: float) -> Row:
        here = self._trial.judge(gallery)
        there = self._trial.judge(gallery, size=self._size)
        retention, low, high = self._retention(here, self._trial.true_values)
        estimate, estimate_low, estimate_high = self._retention(there, self._true_there)
        return Row(
            name=name,
            score=float(np.nanmean(here)),
            retention=retention,
            low=low,
            high=high,
            estimate=estimate,
            estimate_low=estimate_low,
            estimate_high=estimate_high,
            seconds=seconds,
        )

    def _retention(self, values: Float64, true: Float64) -> tuple[float, float, float]:
        """(value, low, high) of the ratio of means."""
        ratios = [np.nanmean(values[rows]) / np.nanmean(true[rows]) for rows in self._samples]
        low, high = np.quantile(ratios, [0.025, 0.975]) if ratios else (np.nan, np.nan)
        return float(np.nanmean(values) / np.nanmean(true)), float(low), float(high)
