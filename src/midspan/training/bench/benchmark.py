"""`bench`: settings in, a folder of runs and one document of results out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midspan.atomic_write import write_text
from midspan.config import current_name
from midspan.errors import RunError
from midspan.training.bench.plan import Run, make_plan
from midspan.training.bench.pool import BenchJob, run_jobs
from midspan.training.bench.rows import make_chains, make_rows
from midspan.training.bench.settings import BenchSettings
from midspan.training.folders import CONFIG, environment
from midspan.training.run_file import comparable, to_toml

RESULTS = "bench.json"


@dataclass(frozen=True)
class BenchResult:
    """Rows of the new encoders, matrices of the chains, and what failed, by run."""

    rows: Sequence[Mapping[str, Any]]
    chains: Sequence[Mapping[str, Any]]
    failures: Mapping[str, str]
    document: Mapping[str, Any]  # all of it, as written to bench.json


def bench(
    settings: BenchSettings,
    *,
    out: str | Path,
    jobs: int = 1,
    command: str = "",
    progress: bool = True,
) -> BenchResult:
    """Train and measure what is missing; the same call continues after a stop.

    jobs: runs at a time; with more than one each has one thread, which is faster on a CPU.
    """
    out = Path(out)
    planned = [
        BenchJob.of(run, out, metric=settings.metric, exclude_column=settings.exclude_column)
        for run in make_plan(settings)
    ]
    _check_folders(planned)
    failures = run_jobs(planned, at_once=jobs, show_progress=progress)
    named = {job.run.key: job.run for job in planned}
    rows, chains = make_rows(planned), make_chains(planned)
    failed = {_title(named[key]): reason for key, reason in failures.items()}
    document = {
        "command": command,
        "settings": settings.to_dict(),
        "environment": environment(),
        "rows": rows,
        "chains": chains,
        "failures": failed,
    }
    write_text(out / RESULTS, json.dumps(document, indent=1) + "\n")
    return BenchResult(rows, chains, failed, document)


def read_results(folder: str | Path) -> dict[str, Any]:
    """The document of a benchmark's folder, to be joined with others on one page."""
    path = Path(folder) / RESULTS
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        assert isinstance(document["rows"], list)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise RunError(
            f"{folder}: no results of a benchmark there ({error}); they are written by "
            "midspan bench when its runs are done"
        ) from error
    for row in [*document["rows"], *document.get("chains", ())]:  # of an earlier release
        row["method"] = current_name(row["method"], what="method", warn=False)
    return document


def _check_folders(jobs: Sequence[BenchJob]) -> None:
    """A folder of other settings is refused before anything is trained."""
    for job in jobs:
        written = job.folder / CONFIG
        if not written.exists():
            continue
        before = _lines(comparable(written.read_text(encoding="utf-8")))
        now = _lines(comparable(to_toml(job.config.raw)))
        if before != now:
            changed = sorted(now - before) or sorted(before - now)
            raise RunError(
                f"{job.folder} was created with other settings (now {'; '.join(changed[:3])}); "
                "choose another `out`, or remove that folder to train it again"
            )


def _lines(settings: str) -> set[str]:
    """Without paths: a benchmark and its images may be moved when all is trained."""
    return {line for line in settings.splitlines() if not line.startswith(("path = ", "run = "))}


def _title(run: Run) -> str:
    return run.title if run.group != "old" else f"{run.data} · old encoder · seed {run.seed}"
