"""The backfill: give every item its true new vector, in the order of priority.

The gallery is the record of progress: an item has its vector or it is on the work list. So there
is nothing to lose by a stop or a crash, and any number of processes may run at once: each leases a
batch, and a vector that is there already is never written twice.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from midspan import progress
from midspan.errors import ConfigError, GalleryError, SpaceMismatch
from midspan.gallery import Entry, Failed, Gallery, Task
from midspan.spaces import Space
from midspan.upgrade.embed import Embed, Embedded, embed_all
from midspan.upgrade.gate import GateResult
from midspan.upgrade.mapping import map_items
from midspan.upgrade.record import Record
from midspan.upgrade.steps import judged_by, tidy
from midspan.upgrade.throttle import Latency, Throttle

BATCH = 64  # items embedded and written at once, at first
GROWTH = 32  # times as many at most, while a batch takes less than QUICK seconds
QUICK = 1.0
LEASE = 120.0  # seconds that a batch is this worker's; another takes it after that
RETRIES = 3  # then an item goes to the failure list
BACK_OFF = 2.0  # seconds before the first retry, doubled for each further one
TELL_EVERY = 10.0  # seconds between two lines of progress in the audit trail
IDLE = 0.2  # seconds between looks while others hold what is left

Stopped = Literal["done", "limit", "paused", "ended", "idle"]


@dataclass(frozen=True, slots=True)
class Report:
    """What this worker did, and how the gallery stands: old + new + failed = all."""

    written: int
    given_up: int
    put_off: int  # tries that failed and will be made again
    seconds: float
    stopped: Stopped
    old: int
    new: int
    failed: int
    all: int

    @property
    def rate(self) -> float:
        """Items that got their vector, a second."""
        return self.written / max(self.seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """At this worker's own rate; None if it did nothing."""
        return self.old / self.rate if self.written else None


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults are our own choices; tests use shorter times.

    A quick encoder gets batches of up to `growth` times `batch`. Claiming and writing 64 images,
    with a wait for the disk, took a fifth of the time that a small network needs for them; and
    only within a batch can the next images be read while the encoder works.
    """

    batch: int = BATCH
    growth: int = GROWTH
    lease: float = LEASE
    retries: int = RETRIES
    back_off: float = BACK_OFF
    wait: bool = True  # for items that others hold or that failed a moment ago


def run(
    gallery: Gallery,
    embed: Embed,
    *,
    limit: int | None = None,
    max_rate: float | None = None,
    latency: Latency | None = None,
    check: Callable[[], GateResult] | None = None,
    check_every: int = 1000,
    settings: Settings | None = None,
    show: bool = False,
) -> Report:
    """Work until nothing is left, `limit` items are through, or the upgrade is paused or ended.

    max_rate: items a second. latency: rest while live searches are slower than a ceiling.
    check: the gate, asked each `check_every` items and at the end; a FAIL pauses the upgrade.
    """
    settings = settings or Settings()
    for name, value in (("limit", limit), ("batch", settings.batch), ("check_every", check_every)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value}; wanted 1 or more")
    state = gallery.state
    if state.target is None:
        raise GalleryError(
            f"{gallery.location}: nothing is to be embedded; begin with midspan upgrade start"
        )
    if (record := Record.of(state)) is not None and record.phase == "mapping":
        raise GalleryError(
            f"{gallery.location} is not mapped to the end yet; repeat midspan upgrade start, "
            "which goes on where it stopped"
        )
    worker = _Worker(gallery, embed, target=state.spaces[state.target], settings=settings)
    throttle = Throttle(max_rate=max_rate, latency=latency)
    _map_leftovers(gallery)
    total = gallery.store.count().pending
    stopped: Stopped = "done"
    try:
        with progress.bar("backfill", total=total, unit="items", show=show) as done:
            checked, size = 0, settings.batch
            while (why := worker.must_stop()) is None:
                room = size if limit is None else min(size, limit - worker.done)
                if room <= 0:
                    why = "limit"
                    break
                throttle.wait(lambda: worker.must_stop() is None)
                tasks = worker.claim(throttle.batch(room))
                if not tasks:
                    if (why := worker.nothing_due()) is not None:
                        break
                    time.sleep(IDLE)
                    continue
                before, began = worker.done, time.monotonic()
                worker.work(tasks)
                size = _next_size(size, len(tasks), time.monotonic() - began, settings)
                throttle.done(len(tasks))
                done(worker.done - before)
                worker.tell(every=TELL_EVERY)
                if check is not None and worker.done - checked >= check_every:
                    checked = worker.done
                    judged_by(gallery, check())
            stopped = why
    finally:
        worker.leave()
    if check is not None and stopped in ("done", "limit"):
        judged_by(gallery, check())
    if stopped == "done":
        _map_leftovers(gallery)
        tidy(gallery)
    return worker.report(stopped)


def _next_size(size: int, done: int, seconds: float, settings: Settings) -> int:
    """Twice as many after a quick batch, half after a slow one."""
    if seconds > 2 * QUICK:
        return max(settings.batch, size // 2)
    if done == size and seconds < QUICK:
        return min(2 * size, settings.growth * settings.batch)
    return size


class _Worker:
    """One process's share of the work."""

    def __init__(
        self, gallery: Gallery, embed: Embed, *, target: Space, settings: Settings
    ) -> None:
        self.store = gallery.store
        self.gallery = gallery
        self.embed = embed
        self.target = target
        self.settings = settings
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"[:200]
        self.started = self._told = time.monotonic()
        self._told_written = 0
        self.written = self.given_up = self.put_off = 0

    @property
    def done(self) -> int:
        return self.written + self.given_up

    def must_stop(self) -> Stopped | None:
        """Looked at before, within and after each batch; costs no more than a counter."""
        state = self.gallery.state
        if state.target != self.target.fingerprint:
            return "ended"
        record = Record.of(state)
        if record is None and state.target not in state.live:
            return "ended"  # rolled back a moment ago
        return "paused" if record is not None and record.phase == "paused" else None

    def claim(self, count: int) -> list[Task]:
        if self.must_stop() is not None:
            return []
        tasks = self.store.claim(worker=self.name, limit=count, seconds=self.settings.lease)
        if tasks and self.must_stop() is not None:  # paused in this moment
            self.store.release(self.name)
            return []
        return tasks

    def nothing_due(self) -> Stopped | None:
        """Why to stop, or None: others hold the rest, or it failed a moment ago."""
        if (why := self.must_stop()) is not None:
            return why
        if self.store.count().pending == 0:
            return "done"
        return None if self.settings.wait else "idle"

    def work(self, tasks: Sequence[Task]) -> None:
        made = embed_all(self.embed, [task.item for task in tasks], space=self.target)
        if not made.vectors.space.same_as(self.target):
            raise SpaceMismatch(
                f"this encoder makes vectors in {made.vectors.space}; the upgrade of "
                f"{self.gallery.location} leads to {self.target}: use that encoder, or its vectors"
            )
        revisions = {task.item.id: task.item.revision for task in tasks}
        if len(made.vectors):
            wanted = [revisions[id] for id in made.vectors.ids.tolist()]
            try:
                self.written += self.store.fill(made.vectors, revisions=wanted)
            except SpaceMismatch:
                if self.must_stop() != "ended":
                    raise
                return  # rolled back while these were embedded: they are not wanted any more
        self._report_failures(made, tasks, revisions)

    def _report_failures(
        self, made: Embedded, tasks: Sequence[Task], revisions: dict[str, int]
    ) -> None:
        hopeless = [Failed(id, revisions[id], why) for id, why in made.hopeless.items()]
        later: dict[float, list[Failed]] = {}
        for task in tasks:
            if (why := made.failed.get(task.item.id)) is None:
                continue
            report = Failed(task.item.id, task.item.revision, why)
            if task.attempts + 1 >= self.settings.retries:
                hopeless.append(report)
            else:
                later.setdefault(self.settings.back_off * 2**task.attempts, []).append(report)
        if hopeless:
            self.store.fail(hopeless, retry_after=None)
        for seconds, reports in later.items():
            self.store.fail(reports, retry_after=seconds)
            self.put_off += len(reports)
        self.given_up += len(hopeless)

    def tell(self, *, every: float) -> None:
        """A line of true progress in the trail, from which `status` has its rate."""
        now = time.monotonic()
        if now - self._told < every or self.written == self._told_written:
            return
        details = {
            "worker": self.name,
            "written": self.written - self._told_written,
            "seconds": round(now - self._told, 3),
            "given_up": self.given_up,
        }
        self.store.record(Entry(who=self.gallery.who, what="upgrade run", details=details))
        self._told, self._told_written = now, self.written

    def leave(self) -> None:
        self.store.release(self.name)
        self.tell(every=0.0)

    def report(self, stopped: Stopped) -> Report:
        counts = self.store.count()
        return Report(
            written=self.written,
            given_up=self.given_up,
            put_off=self.put_off,
            seconds=time.monotonic() - self.started,
            stopped=stopped,
            old=counts.pending,
            new=counts.done,
            failed=counts.failed,
            all=counts.items,
        )


def _map_leftovers(gallery: Gallery) -> None:
    """Items that came with an old vector only, after the gallery was mapped."""
    record = Record.of(gallery.state)
    if (
        record is not None
        and record.mapped is not None
        and record.phase == "running"
        and gallery.store.count().live.get(record.old)
    ):
        map_items(gallery, record)
