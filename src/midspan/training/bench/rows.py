"""From measured runs to rows: one for each new encoder, with gains and scores of its case."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from midspan.evaluation import gains, is_compatible, p_scores
from midspan.training.bench.measure import MEASURED
from midspan.training.bench.pool import BenchJob
from midspan.training.bench.settings import UPPER
from midspan.training.folders import RunFolder

# The order of a row's columns; further ones follow.
COLUMNS = (
    "allocation",
    "method",
    "seed",
    "old_self",
    "new_self",
    "upper_self",
    "cross",
    "p_up",
    "p_comp",
    "p_1",
    "negative_flips",
    "seconds",
)


def make_rows(jobs: Sequence[BenchJob]) -> list[dict[str, Any]]:
    """Of the finished runs whose old encoder and upper bound are finished too."""
    finished = [job for job in jobs if job.finished]
    measured = {job.run.key: _measured(job) for job in finished}
    upper = {
        (job.run.data, job.run.allocation, job.run.seed): measured[job.run.key]["self"]
        for job in finished
        if job.run.kind == "new" and job.run.method == UPPER
    }
    rows = []
    for job in finished:
        run = job.run
        case = (run.data, run.allocation, run.seed)
        if run.kind == "new" and run.old in measured and case in upper:
            rows.append(_row(job, measured[run.key], measured[run.old], upper[case]))
    return rows


def _row(job: BenchJob, new: dict[str, Any], old: dict[str, Any], upper: float) -> dict[str, Any]:
    directions = new["directions"]
    crosses = {name: one["cross"] for name, one in directions.items()}
    best = max(crosses, key=crosses.__getitem__, default="")  # of its directions, as LCE counts
    cross = crosses.get(best, math.nan)
    chosen = directions.get(best, {})
    values = {"old": old["self"], "new": new["self"], "upper": upper}
    gain = gains(**values, cross=list(crosses.values()) or math.nan)
    p = p_scores(**values, cross=cross) if upper > 0 else None
    run = job.run
    row = {
        "allocation": run.allocation,
        "method": run.method,
        "seed": run.seed,
        "old_self": old["self"],
        "new_self": new["self"],
        "upper_self": upper,
        "cross": cross,
        "p_up": p.up if p else math.nan,
        "p_comp": p.comp if p else math.nan,
        "p_1": p.score if p else math.nan,
        "negative_flips": chosen.get("negative_flips", math.nan),
        "seconds": RunFolder(job.folder).metrics()["train_seconds"],
        "data": run.data,
        "group": run.group,
        "direction": best,
        "compatible": is_compatible(cross=cross, old=old["self"]),
        "random_cross": old["random_cross"],
        "positive_flips": chosen.get("positive_flips", math.nan),
        "update_gain": gain.update,
        "perf_gain": gain.performance,
        "upgrade_gain": gain.upgrade,
        "backfill_area": chosen.get("area", math.nan),
        "backfill": chosen.get("curve", []),
        **{f"cross_{name}": value for name, value in crosses.items()},
    }
    assert tuple(row)[: len(COLUMNS)] == COLUMNS
    return {name: None if _is_nan(value) else value for name, value in row.items()}


def make_chains(jobs: Sequence[BenchJob]) -> list[dict[str, Any]]:
    """The compatibility matrix of each finished chain: row t, column k ≤ t."""
    return [
        {
            "data": job.run.data,
            "allocation": job.run.allocation,
            "method": job.run.method,
            "seed": job.run.seed,
            "matrix": _measured(job)["matrix"],
        }
        for job in jobs
        if job.run.chain and job.finished
    ]


def _measured(job: BenchJob) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((job.folder / MEASURED).read_text(encoding="utf-8"))
    return document


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
