"""Runs of a plan, some at a time, each after the one it needs; one bar over all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from midspan import progress
from midspan.errors import ConfigError, Interrupted
from midspan.training.bench.measure import MeasureSpec
from midspan.training.bench.plan import Run, run_folder
from midspan.training.folders import RunFolder
from midspan.training.inputs import read_inputs
from midspan.training.interrupt import interruptible
from midspan.training.settings import RunConfig

LOOK_EVERY = 0.5  # seconds between two reads of the logs


@dataclass(frozen=True)
class BenchJob:
    """A run with its folder."""

    run: Run
    folder: Path
    config: RunConfig
    how: MeasureSpec
    chain: tuple[Path, ...]

    @classmethod
    def of(cls, run: Run, out: Path, *, metric: str, exclude_column: str | None) -> BenchJob:
        return cls(
            run=run,
            folder=run_folder(out / "runs", run.key),
            config=run.config(out),
            how=MeasureSpec(metric=metric, exclude_column=exclude_column, kind=run.kind),
            chain=tuple(run_folder(out / "runs", key).resolve() for key in run.chain),
        )

    @property
    def finished(self) -> bool:
        return RunFolder(self.folder).finished and self.how.matches(self.folder)

    def images(self) -> int:
        """Images that its log counts, of all finished epochs."""
        return int(sum(line["images"] for line in RunFolder(self.folder).log_lines()))

    def task(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder.resolve()),
            "config": dict(self.config.raw),
            "how": asdict(self.how),
            "chain": [str(path) for path in self.chain],
        }


def run_jobs(jobs: Sequence[BenchJob], *, at_once: int, show_progress: bool) -> dict[str, str]:
    """Do all unfinished jobs. Returns the reason of each run that failed, by key."""
    waiting = [job for job in jobs if not job.finished]
    if not waiting:
        return {}
    if at_once < 1:
        raise ConfigError(f"expected jobs of at least 1, got {at_once}")
    total = _images_left(waiting)
    failed: dict[str, str] = {}
    unfinished = {job.run.key for job in waiting}
    with (
        _Workers(min(at_once, len(waiting)), threads=1 if at_once > 1 else None) as workers,
        progress.bar("bench", total=sum(total.values()), unit="images", show=show_progress) as done,
        interruptible() as interrupted,
    ):
        seen = {job.run.key: job.images() for job in waiting}
        running: dict[Future[Mapping[str, str]], BenchJob] = {}
        stopped = False
        while waiting or running:
            for job in _ready(waiting, unfinished, failed)[: at_once - len(running)]:
                waiting.remove(job)
                running[workers.submit(job.task())] = job
            finished, _ = wait(running, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
            for job in running.values():
                now = job.images()
                if now > seen[job.run.key]:  # epochs lost by a kill are not counted twice
                    done(now - seen[job.run.key])
                    seen[job.run.key] = now
            for future in finished:
                job, answer = running.pop(future), future.result()
                if answer["state"] == "done":
                    unfinished.discard(job.run.key)
                elif answer["state"] == "failed":
                    failed[job.run.key] = answer["reason"]
            if interrupted() and not stopped:
                stopped = True
                waiting.clear()
                workers.interrupt()
            waiting = _without_failed_needs(waiting, failed)
        if stopped:
            raise Interrupted("stopped; the same command continues from here")
    return failed


def _ready(
    waiting: Sequence[BenchJob], unfinished: set[str], failed: Mapping[str, str]
) -> list[BenchJob]:
    return [job for job in waiting if not _needs(job) & (unfinished | failed.keys())]


def _needs(job: BenchJob) -> set[str]:
    return set() if job.run.old is None else {job.run.old}


def _without_failed_needs(waiting: list[BenchJob], failed: dict[str, str]) -> list[BenchJob]:
    """Runs whose old encoder failed are recorded as failed."""
    for job in waiting:
        for key in _needs(job) & failed.keys():
            failed[job.run.key] = f"not started, because {key} failed"
    return [job for job in waiting if job.run.key not in failed]


def _images_left(jobs: Sequence[BenchJob]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    left = {}
    for job in jobs:
        raw = job.config.raw
        part = json.dumps([raw["data"], raw.get("allocation"), raw.get("evaluate")], sort_keys=True)
        if part not in sizes:
            sizes[part] = len(read_inputs(job.config).labels)
        left[job.run.key] = max(0, sizes[part] * job.config.train.epochs - job.images())
    return left


@dataclass
class _Workers:
    """Processes that live as long as the benchmark; a thread waits for the answers of each."""

    count: int
    threads: int | None
    idle: SimpleQueue[subprocess.Popen[str]] = field(default_factory=SimpleQueue)
    alive: set[subprocess.Popen[str]] = field(default_factory=set)

    def __enter__(self) -> _Workers:
        self.pool = ThreadPoolExecutor(self.count)
        for _ in range(self.count):
            self.idle.put(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        for process in list(self.alive):
            assert process.stdin is not None
            process.stdin.close()  # the end of its work; one that hangs is ended
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close(process)
        self.pool.shutdown()

    def submit(self, task: Mapping[str, Any]) -> Future[Mapping[str, str]]:
        return self.pool.submit(self._ask, task)

    def interrupt(self) -> None:
        for process in self.alive:
            process.send_signal(signal.SIGINT)

    def _ask(self, task: Mapping[str, Any]) -> Mapping[str, str]:
        process = self.idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        if answer:
            self.idle.put(process)
            given: Mapping[str, str] = json.loads(answer)
            return given
        code = process.wait()
        self.alive.discard(process)
        _close(process)
        self.idle.put(self._start())
        return {"state": "failed", "reason": f"its process ended with code {code}"}

    def _start(self) -> subprocess.Popen[str]:
        own = {**os.environ, "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
        if self.threads is not None:
            own |= {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        process = subprocess.Popen(
            [sys.executable, "-m", "midspan.training.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=own,
            start_new_session=True,  # Ctrl-C comes through us, once
        )
        self.alive.add(process)
        return process


def _close(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            stream.close()
