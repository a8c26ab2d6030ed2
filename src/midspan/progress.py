"""Progress of long jobs on stderr: a bar with rate and time left, or plain lines in a log.

    with progress.bar("embed", total=len(images), unit="images", show=True) as done:
        for batch in batches:
            ...
            done(len(batch))

stdout stays free for results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Done = Callable[[int], None]
Watcher = Callable[[str, int, int], None]  # label, finished, total

LINE_EVERY = 5.0  # seconds between two plain lines


_watcher: ContextVar[Watcher | None] = ContextVar("progress_watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Bars in this block report to `watcher` instead; what it raises ends the work."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def bar(label: str, *, total: int, unit: str, show: bool = True) -> Iterator[Done]:
    """Yields done(n), to be called when n further units of work are finished."""
    if (watcher := _watcher.get()) is not None:
        yield _reporting(watcher, label, total)
    elif not show:
        yield _silent
    elif sys.stderr.isatty():
        with _rich_bar(label, total=total, unit=unit) as done:
            yield done
    else:
        with _plain_lines(label, total=total, unit=unit) as done:
            yield done


def _silent(count: int) -> None:
    pass


def _reporting(watcher: Watcher, label: str, total: int) -> Done:
    finished = 0

    def done(count: int) -> None:
        nonlocal finished
        finished += count
        watcher(label, finished, total)

    watcher(label, 0, total)
    return done


@contextmanager
def _rich_bar(label: str, *, total: int, unit: str) -> Iterator[Done]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("·"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    started = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=total, rate="")
        finished = 0

        def done(count: int) -> None:
            nonlocal finished
            finished += count
            rate = _speed(_rate(finished, started), unit)
            progress.update(task, completed=finished, rate=rate)

        yield done


@contextmanager
def _plain_lines(label: str, *, total: int, unit: str) -> Iterator[Done]:
    started = last = time.perf_counter()
    finished = 0

    def line(*, end: bool) -> str:
        rate = _rate(finished, started)
        if end:
            seconds = time.perf_counter() - started
            return f"{label}: {finished:,} {unit} in {seconds:.1f} s ({_speed(rate, unit)})"
        left = (total - finished) / rate if rate else float("inf")
        speed = _speed(rate, unit)
        return f"{label}: {finished:,}/{total:,} {unit}, {speed}, {left:.0f} s left"

    def done(count: int) -> None:
        nonlocal finished, last
        finished += count
        now = time.perf_counter()
        if now - last >= LINE_EVERY:
            last = now
            print(line(end=False), file=sys.stderr, flush=True)

    yield done
    print(line(end=True), file=sys.stderr, flush=True)


def _rate(finished: int, started: float) -> float:
    return finished / max(time.perf_counter() - started, 1e-9)


def _speed(rate: float, unit: str) -> str:
    """Slow work shows the time of one unit, since "0 runs/s" is of no use."""
    if 0 < rate < 1:
        return f"{1 / rate:.1f} s per {unit.removesuffix('s')}"
    return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.1f} {unit}/s"
