"""The backfill: give every item its true new vector, in the order of priority.

The gallery is the record of progress: an item has its vector or it is on the work list. So there
is nothing to lose by a stop or a crash, and any number of processes may run at once: each leases a
batch, and a vector that is there already is never written twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from midspan import progress
from midspan.errors import ConfigError, GalleryError
from midspan.gallery import Gallery, Task
from midspan.gallery.records import Record
from midspan.spaces import Space
from midspan.upgrade.embed import Embed, Embedded
from midspan.upgrade.finish import tidy
from midspan.upgrade.shadow import judged_by
from midspan.upgrade.start import map_items
from midspan.upgrade.throttle import Latency, Throttle
from midspan.upgrade.verdicts import GateResult
from midspan.upgrade.worker import Report, Settings, Stopped, Worker

QUICK = 1.0  # seconds: batches that take less grow, those that take twice as long shrink
TELL_EVERY = 10.0  # seconds between two lines of progress in the audit log
IDLE = 0.2  # seconds until the first further look while others hold what is left
LONGEST_IDLE = 2.0  # each look waits twice as long as the one before
CHECKS = 20  # of the gate on the whole way
SHARE = 1 / 4  # of a lease that a batch may take if the next one is claimed meanwhile


def run(
    gallery: Gallery,
    embed: Embed,
    *,
    limit: int | None = None,
    max_rate: float | None = None,
    latency: Latency | None = None,
    check: Callable[[], GateResult] | None = None,
    check_every: int | None = None,
    settings: Settings | None = None,
    show: bool = False,
) -> Report:
    """Work until nothing is left, `limit` items are through, or the upgrade is paused or ended.

    `Upgrade.run` is the same and takes an encoder as well.

    Args:
        gallery: A gallery with an open upgrade.
        embed: From items to their vectors.
        limit: Stop after so many items; None: when nothing is left.
        max_rate: Items a second.
        latency: Rest while live searches are slower than a ceiling.
        check: The gate, asked 20 times on the whole way and at the end; a FAIL pauses the upgrade.
        check_every: Items between two checks.
        settings: Batch size, leases and retries.
        show: A progress bar.

    Returns:
        What this worker wrote, and how the gallery is now: old + new + failed = all.

    Raises:
        ConfigError: A setting is out of range.
        GalleryError: No upgrade is open.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import from_embeddings, run
        >>> old = ms.Embeddings(np.array(["a", "b", "c"]), np.eye(3), ms.Space("old", 3))
        >>> new = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("new", 2))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> report = run(gallery, from_embeddings(new))
        >>> report.stopped, report.written, report.failed
        ('done', 2, 1)
    """
    settings = settings or Settings()
    target = check_run(gallery, limit=limit, check_every=check_every, settings=settings)
    check_every = check_every or items_between_checks(gallery)
    worker = Worker(gallery, embed, target=target, settings=settings)
    throttle = Throttle(max_rate=max_rate, latency=latency)
    map_leftovers(gallery)
    total = gallery.count().pending
    try:
        with (
            worker.renewing_leases(),
            progress.bar("backfill", total=total, unit="items", show=show) as done,
        ):
            stopped = _BackfillLoop(
                worker, throttle, limit=limit, check=check, check_every=check_every, done=done
            ).work()
    finally:
        worker.leave()
    if check is not None and stopped in ("done", "limit"):
        judged_by(gallery, check())
    if stopped == "done":
        map_leftovers(gallery)
        tidy(gallery)
    return worker.report(stopped)


def check_run(
    gallery: Gallery, *, limit: int | None, check_every: int | None, settings: Settings
) -> Space:
    """The space that all items shall get a vector in; settings and steps that do not fit raise."""
    for name, value in (("limit", limit), ("batch", settings.batch), ("check_every", check_every)):
        if value is not None and value < 1:
            raise ConfigError(f"expected {name} >= 1, got {value}")
    state = gallery.state
    if state.target is None:
        raise GalleryError(
            f"{gallery.location}: nothing is to be embedded; begin with midspan upgrade start"
        )
    if (record := Record.of(state)) is not None and record.phase == "mapping":
        raise GalleryError(
            f"{gallery.location} is not mapped to the end yet; repeat midspan upgrade start, "
            "which continues where it stopped"
        )
    return state.spaces[state.target]


def items_between_checks(gallery: Gallery) -> int:
    """By share of the way: a gate that looks each thousand items looks never, or all the time."""
    return max(1, -(-gallery.count().items // CHECKS))


class _BackfillLoop:
    """From the first batch to the reason to stop."""

    def __init__(
        self,
        worker: Worker,
        throttle: Throttle,
        *,
        limit: int | None,
        check: Callable[[], GateResult] | None,
        check_every: int,
        done: Callable[[int], None],
    ) -> None:
        self.worker, self.throttle, self.limit = worker, throttle, limit
        self.check, self.check_every, self.checked = check, check_every, 0
        self.size = worker.settings.batch
        self.pace: float | None = None  # seconds an item took in the last batch
        self._done, self._shown = done, 0

    def work(self) -> Stopped:
        try:
            return self._work()
        finally:
            self._show()

    def _work(self) -> Stopped:
        idle = IDLE
        with Prefetcher(self.worker) as ahead:
            while (why := self.worker.must_stop()) is None:
                began = time.monotonic()
                batch = ahead.take()
                if batch is None:
                    room = self._room(ahead, self._wanted())
                    if room <= 0:
                        return "limit"
                    self.throttle.wait(lambda: self.worker.must_stop() is None)
                    began = time.monotonic()
                    tasks = self.worker.claim(self.throttle.batch(room))
                    if not tasks:
                        if ahead.flush():  # which may have been the last ones
                            continue
                        if (why := self.worker.nothing_due()) is not None:
                            return why
                        time.sleep(idle)
                        idle = min(2 * idle, LONGEST_IDLE)
                        continue
                    idle = IDLE
                    batch = ReadBatch(tasks, self.worker.read(tasks))
                self._embed(batch, ahead)
                self._resize(len(batch.tasks), time.monotonic() - began)
                self._look_round(ahead)
            return why

    def _embed(self, batch: ReadBatch, ahead: Prefetcher) -> None:
        count = len(batch.tasks)
        self.throttle.done(count)
        if self._may_go_ahead(ahead, count):
            room = self._room(ahead, self._wanted(), count)
            if room > 0:
                ahead.begin(room)
        ahead.write(batch, self.worker.made(batch.tasks, batch.read))

    def _wanted(self) -> int:
        """A batch that is larger than the way between two gates would leave some out."""
        return self.size if self.check is None else min(self.size, self.check_every)

    def _room(self, ahead: Prefetcher, count: int, taken: int = 0) -> int:
        """Of the requested items, those that the limit allows besides the ones in progress."""
        if self.limit is None:
            return count
        if (left := self.limit - self._through(ahead) - taken) < count:
            ahead.flush()  # some may have failed, to be tried again: they do not count
            left = self.limit - self.worker.done - taken
        return min(count, left)

    def _may_go_ahead(self, ahead: Prefetcher, count: int) -> bool:
        """Not while searches are slow, not before a gate, not past what the lease is good for."""
        lease = self.worker.settings.lease
        if self.pace is None or self.pace * max(self.size, count) > SHARE * lease:
            return False
        if self.check is not None and self._since_check(ahead) + count >= self.check_every:
            return False
        if self.throttle.free:
            self.throttle.wait(lambda: self.worker.must_stop() is None)
        return self.throttle.free

    def _resize(self, count: int, seconds: float) -> None:
        """Twice as many after a quick batch, half after a slow one."""
        settings = self.worker.settings
        self.pace = seconds / count
        if seconds > 2 * QUICK:
            self.size = max(settings.batch, self.size // 2)
        elif count == self._wanted() and seconds < QUICK:
            self.size = min(2 * self.size, settings.growth * settings.batch)

    def _look_round(self, ahead: Prefetcher) -> None:
        """Between two batches: report progress, and ask the gate when it is due."""
        if self.check is not None and self._since_check(ahead) >= self.check_every:
            ahead.flush()
            if self.worker.done - self.checked >= self.check_every:
                self.checked = self.worker.done
                judged_by(self.worker.gallery, self.check())
        self._show()
        self.worker.tell(every=TELL_EVERY)

    def _show(self) -> None:
        now = self.worker.done  # may grow concurrently
        self._done(now - self._shown)
        self._shown = now

    def _since_check(self, ahead: Prefetcher) -> int:
        return self._through(ahead) - self.checked

    def _through(self, ahead: Prefetcher) -> int:
        """In this order: what is written in between is counted twice then, not left out."""
        return ahead.unwritten + self.worker.done


def map_leftovers(gallery: Gallery) -> None:
    """Items that came with an old vector only, after the gallery was mapped."""
    record = Record.of(gallery.state)
    if (
        record is not None
        and record.mapped is not None
        and record.phase == "running"
        and gallery.count().live.get(record.old)
    ):
        map_items(gallery, record)


# ---- while a batch is embedded, the next one is read and the one before is written ---------------
# The encoder stays in the caller's thread; one more thread claims and reads, another writes. A
# batch that was taken ahead and is not needed any more (a pause, an error) was only leased: the
# worker gives it back with the rest of its leases.


@dataclass(frozen=True, slots=True)
class ReadBatch:
    tasks: Sequence[Task]
    read: Any | None  # what the encoder needs of them, where it reads in a step of its own


class Prefetcher:
    """At most one batch is read ahead and one is being written. Not for several callers at once."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="backfill")
        self._coming: Future[ReadBatch] | None = None
        self._writing: Future[None] | None = None
        self._sent = 0  # items of the batch that is being written

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Both threads have ended after this, so that no lease is taken after the last release."""
        self._pool.shutdown(wait=True)
        if error is None:
            self.flush()

    def begin(self, count: int) -> None:
        """Claim and read up to so many items."""
        assert self._coming is None
        self._coming = self._pool.submit(self._claim_and_read, count)

    def take(self) -> ReadBatch | None:
        """The batch that was begun; None if none was, or nothing was due."""
        if self._coming is None:
            return None
        coming, self._coming = self._coming, None
        batch = coming.result()
        return batch if batch.tasks else None

    def write(self, batch: ReadBatch, embedded: Embedded) -> None:
        """Returns when the batch before is written; that one's error is raised here."""
        self.flush()
        self._sent = len(batch.tasks)
        self._writing = self._pool.submit(self._worker.write, batch.tasks, embedded)

    @property
    def unwritten(self) -> int:
        """Items on their way to the gallery; for a moment the worker may count them too."""
        return 0 if self._writing is None or self._writing.done() else self._sent

    def flush(self) -> bool:
        """Wait until all is written that was made; whether there was anything to wait for."""
        if self._writing is None:
            return False
        writing, self._writing = self._writing, None
        writing.result()
        return True

    def _claim_and_read(self, count: int) -> ReadBatch:
        tasks = self._worker.claim(count)
        return ReadBatch(tasks, self._worker.read(tasks) if tasks else None)
