"""The backfill: give every item its true new vector, in the order of priority.

The gallery is the record of progress: an item has its vector or it is on the work list. So there
is nothing to lose by a stop or a crash, and any number of processes may run at once: each leases a
batch, and a vector that is there already is never written twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from midspan import progress
from midspan.errors import ConfigError, GalleryError
from midspan.gallery import Gallery
from midspan.spaces import Space
from midspan.upgrade.ahead import Ahead, Batch
from midspan.upgrade.embed import Embed
from midspan.upgrade.gate import GateResult
from midspan.upgrade.mapping import map_items
from midspan.upgrade.record import Record
from midspan.upgrade.steps import judged_by, tidy
from midspan.upgrade.throttle import Latency, Throttle
from midspan.upgrade.worker import Report, Settings, Stopped, Worker

__all__ = ["Report", "Settings", "run"]

QUICK = 1.0  # seconds: batches that take less grow, those that take twice as long shrink
TELL_EVERY = 10.0  # seconds between two lines of progress in the audit trail
IDLE = 0.2  # seconds between looks while others hold what is left
SHARE = 1 / 4  # of a lease that a batch may take if the next one is claimed meanwhile


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
    target = check_run(gallery, limit=limit, check_every=check_every, settings=settings)
    worker = Worker(gallery, embed, target=target, settings=settings)
    throttle = Throttle(max_rate=max_rate, latency=latency)
    map_leftovers(gallery)
    total = gallery.store.count().pending
    try:
        with progress.bar("backfill", total=total, unit="items", show=show) as done:
            stopped = _Shift(
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
    gallery: Gallery, *, limit: int | None, check_every: int, settings: Settings
) -> Space:
    """The space that all items shall get a vector in; settings and steps that do not fit raise."""
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
    return state.spaces[state.target]


class _Shift:
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
        with Ahead(self.worker) as ahead:
            while (why := self.worker.must_stop()) is None:
                began = time.monotonic()
                batch = ahead.take()
                if batch is None:
                    room = self._room(ahead, self.size)
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
                        time.sleep(IDLE)
                        continue
                    batch = Batch(tasks, self.worker.read(tasks))
                self._embed(batch, ahead)
                self._resize(len(batch.tasks), time.monotonic() - began)
                self._look_round(ahead)
            return why

    def _embed(self, batch: Batch, ahead: Ahead) -> None:
        count = len(batch.tasks)
        self.throttle.done(count)
        if self._may_go_ahead(ahead, count) and (room := self._room(ahead, self.size, count)) > 0:
            ahead.begin(room)
        ahead.write(batch, self.worker.made(batch.tasks, batch.read))

    def _room(self, ahead: Ahead, wanted: int, taken: int = 0) -> int:
        """Of the items wanted, those that the limit allows beside the ones on their way."""
        if self.limit is None:
            return wanted
        if (left := self.limit - self._through(ahead) - taken) < wanted:
            ahead.flush()  # some may have failed, to be tried again: they do not count
            left = self.limit - self.worker.done - taken
        return min(wanted, left)

    def _may_go_ahead(self, ahead: Ahead, count: int) -> bool:
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
        elif count == self.size and seconds < QUICK:
            self.size = min(2 * self.size, settings.growth * settings.batch)

    def _look_round(self, ahead: Ahead) -> None:
        """What is to be done between two batches: tell, and ask the gate when its time has come."""
        if self.check is not None and self._since_check(ahead) >= self.check_every:
            ahead.flush()
            if self.worker.done - self.checked >= self.check_every:
                self.checked = self.worker.done
                judged_by(self.worker.gallery, self.check())
        self._show()
        self.worker.tell(every=TELL_EVERY)

    def _show(self) -> None:
        now = self.worker.done  # may grow in this moment
        self._done(now - self._shown)
        self._shown = now

    def _since_check(self, ahead: Ahead) -> int:
        return self._through(ahead) - self.checked

    def _through(self, ahead: Ahead) -> int:
        """In this order: what is written in between is counted twice then, not left out."""
        return ahead.unwritten + self.worker.done


def map_leftovers(gallery: Gallery) -> None:
    """Items that came with an old vector only, after the gallery was mapped."""
    record = Record.of(gallery.state)
    if (
        record is not None
        and record.mapped is not None
        and record.phase == "running"
        and gallery.store.count().live.get(record.old)
    ):
        map_items(gallery, record)
