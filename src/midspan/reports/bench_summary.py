"""Rows of a benchmark's runs → means and spreads over seeds, by data set, allocation, method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from midspan.errors import EvaluationError

Row = Mapping[str, Any]
NUMBERS = (
    "old_self",
    "new_self",
    "upper_self",
    "cross",
    "p_up",
    "p_comp",
    "p_1",
    "negative_flips",
    "positive_flips",
    "update_gain",
    "perf_gain",
    "upgrade_gain",
    "backfill_area",
    "random_cross",
    "cross_direct",
    "cross_backward",
    "cross_forward",
    "seconds",
)
UPPER = "independent"


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """One method in one case, over its seeds."""

    data: str
    allocation: str
    method: str
    group: str  # "method" or "ablation"
    seeds: int
    met: int  # seeds whose cross is above old self
    mean: Mapping[str, float]
    spread: Mapping[str, float]  # standard deviation over seeds (n − 1), nan for one seed
    backfill: tuple[float, ...]

    @property
    def meets(self) -> bool:
        return self.met == self.seeds

    @property
    def self_share(self) -> float:
        """New self as a share of the upper bound."""
        upper = self.mean["upper_self"]
        return self.mean["new_self"] / upper if upper else math.nan


def summarise(rows: Iterable[Row]) -> list[MethodSummary]:
    """In the order of first appearance."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["data"], row["allocation"], row["method"]), []).append(row)
    return [_entry(key, group) for key, group in groups.items()]


def _entry(key: tuple[str, str, str], rows: Sequence[Row]) -> MethodSummary:
    mean, spread = {}, {}
    for name in NUMBERS:
        values = np.array([_number(row.get(name)) for row in rows])
        known = values[np.isfinite(values)]
        mean[name] = float(known.mean()) if len(known) else math.nan
        spread[name] = float(known.std(ddof=1)) if len(known) > 1 else math.nan
    curves = [row["backfill"] for row in rows if row.get("backfill")]
    return MethodSummary(
        *key,
        group=rows[0].get("group", "method"),
        seeds=len(rows),
        met=sum(bool(row["compatible"]) for row in rows),
        mean=mean,
        spread=spread,
        backfill=tuple(np.mean(curves, axis=0).tolist()) if curves else (),
    )


def summary_rows(entries: Sequence[MethodSummary]) -> list[dict[str, Any]]:
    """For a CSV: mean and spread of each number side by side."""
    return [
        {
            "data": entry.data,
            "allocation": entry.allocation,
            "method": entry.method,
            "seeds": entry.seeds,
            "meets_criterion": entry.met,
            "self_share": entry.self_share,
            **{
                f"{name}_{kind}": values[name]
                for name in NUMBERS
                for kind, values in (("mean", entry.mean), ("std", entry.spread))
                if math.isfinite(entry.mean[name])
            },
        }
        for entry in entries
    ]


def over_data(entries: Sequence[MethodSummary], name: str) -> float:
    """The plain mean over data sets, as AdvBCT's Table 3 averages its P-scores."""
    values = [entry.mean[name] for entry in entries if math.isfinite(entry.mean[name])]
    return float(np.mean(values)) if values else math.nan


def joined(documents: Sequence[Mapping[str, Any]]) -> tuple[list[Row], list[Row], dict[str, str]]:
    """(rows, chains, failures) of several benchmarks that used one metric."""
    metrics = sorted({document["settings"]["metric"] for document in documents})
    if len(metrics) > 1:
        raise EvaluationError(f"one table cannot hold {' and '.join(metrics)}: make two reports")
    rows = [row for document in documents for row in document["rows"]]
    chains = [chain for document in documents for chain in document["chains"]]
    failures = {name: why for document in documents for name, why in document["failures"].items()}
    return rows, chains, failures


@dataclass(frozen=True, slots=True)
class BenchChain:
    """The matrix of a chain, mean over seeds; `broken` names cells outside of their self values."""

    data: str
    allocation: str
    method: str
    seeds: int
    values: Any  # (T, T), nan above the diagonal
    broken: tuple[str, ...]


def summarise_chains(chains: Iterable[Row]) -> list[BenchChain]:
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for chain in chains:
        key = (chain["data"], chain["allocation"], chain["method"])
        groups.setdefault(key, []).append(chain)
    entries = []
    for key, group in groups.items():
        size = len(group[0]["matrix"])
        values = np.full((size, size), np.nan)
        for t in range(size):
            for k in range(t + 1):
                values[t, k] = np.mean([chain["matrix"][t][k] for chain in group])
        entries.append(BenchChain(*key, seeds=len(group), values=values, broken=broken(values)))
    return entries


def broken(values: Any) -> tuple[str, ...]:
    """Cells (queries t, gallery k < t) that do not lie between the self values of k and t."""
    cells = []
    for t in range(len(values)):
        for k in range(t):
            low, high = sorted((values[k, k], values[t, t]))
            if not low <= values[t, k] <= high:
                side = "below" if values[t, k] < low else "above"
                cells.append(
                    f"φ{t + 1} on φ{k + 1}: {values[t, k]:.3f}, {side} {low:.3f} … {high:.3f}"
                )
    return tuple(cells)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
