"""The backfill on a Ray cluster: this process claims and writes, the cluster's workers embed.

So it works with every store, also with one that is a file on this machine; workers need no way to
the database, and one that is lost leaves nothing half written. Several such runs may work on one
gallery at once, as several local ones may: each leases items of its own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from midspan import progress
from midspan.errors import SpaceMismatch
from midspan.gallery import AuditEvent, Gallery, Item
from midspan.spaces import Embeddings, Space
from midspan.upgrade.backfill import (
    IDLE,
    QUICK,
    TELL_EVERY,
    check_run,
    items_between_checks,
    map_leftovers,
)
from midspan.upgrade.cluster.actor import (
    DEADLY,
    BatchResult,
    LostWorker,
    Make,
    WorkerInfo,
    check_sight,
)
from midspan.upgrade.cluster.connect import Workers, connected
from midspan.upgrade.cluster.pool import Pack, Pool
from midspan.upgrade.embed import Embedded
from midspan.upgrade.finish import tidy
from midspan.upgrade.shadow import judged_by
from midspan.upgrade.throttle import Latency, Throttle
from midspan.upgrade.verdicts import GateResult
from midspan.upgrade.worker import Report, Settings, Stopped, Worker

BRIEF = 0.02  # seconds to wait for results when the throttle decides how long to rest
DRAIN = 30.0  # seconds that batches in work have to come back after a pause


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The report of any backfill, and how the cluster stood."""

    report: Report
    workers: int  # the most that were at work at once
    nodes: int  # that had one
    lost: int  # workers that died, or whose node did
    sent_again: int  # items that they had


def run_on_cluster(
    gallery: Gallery,
    make: Make,
    *,
    workers: Workers,
    pack: Pack | None = None,
    seen_here: Callable[[Item], bool] | None = None,
    limit: int | None = None,
    max_rate: float | None = None,
    latency: Latency | None = None,
    check: Callable[[], GateResult] | None = None,
    check_every: int | None = None,
    settings: Settings | None = None,
    show: bool = False,
) -> ClusterReport:
    """Like `backfill.run`, with an encoder that `make` loads on each worker.

    pack: what travels instead of the items. seen_here: whether this process can read the image of
    an item; a worker that can read none of a batch is then refused, rather than that the whole
    gallery goes to the failure list because some storage is not mounted.
    """
    settings = settings or Settings()
    target = check_run(gallery, limit=limit, check_every=check_every, settings=settings)
    check_every = check_every or items_between_checks(gallery)
    throttle = Throttle(max_rate=max_rate, latency=latency)
    map_leftovers(gallery)
    shift = _ClusterLoop(
        gallery,
        target,
        settings,
        throttle,
        limit=limit,
        check=check,
        check_every=check_every,
        seen_here=seen_here,
        show=show,
    )
    try:
        with (
            connected(workers.address) as ray,
            Pool(
                ray, make, workers=workers, welcome=shift.welcome, note=shift.note, pack=pack
            ) as pool,
        ):
            stopped = shift.work(pool)
            nodes, lost = len(pool.nodes), pool.lost
    finally:
        shift.worker.leave()
    if check is not None and stopped in ("done", "limit"):
        judged_by(gallery, check())
    if stopped == "done":
        map_leftovers(gallery)
        tidy(gallery)
    return ClusterReport(
        report=shift.worker.report(stopped),
        workers=shift.most,
        nodes=nodes,
        lost=lost,
        sent_again=shift.sent_again,
    )


class _ClusterLoop:
    """From the first batch to the reason to stop."""

    def __init__(
        self,
        gallery: Gallery,
        target: Space,
        settings: Settings,
        throttle: Throttle,
        *,
        limit: int | None,
        check: Callable[[], GateResult] | None,
        check_every: int,
        seen_here: Callable[[Item], bool] | None,
        show: bool,
    ) -> None:
        self.gallery, self.target, self.settings = gallery, target, settings
        self.throttle, self.limit = throttle, limit
        self.worker = self._begun()
        self.check, self.check_every, self.checked = check, check_every, 0
        self.seen_here, self.show = seen_here, show
        self.size = settings.batch
        self.most = self.sent_again = 0

    def _begun(self) -> Worker:
        return Worker(self.gallery, _elsewhere, target=self.target, settings=self.settings)

    def work(self, pool: Pool) -> Stopped:
        while not pool.ready and self.worker.must_stop() is None:
            pool.take(wait=IDLE)
        self.worker = self._begun()  # loading is no part of its rate, as in the local run
        total = self.worker.gallery.count().pending
        with (
            self.worker.renewing_leases(),
            progress.bar("backfill", total=total, unit="items", show=self.show) as done,
        ):
            while (why := self.worker.must_stop()) is None:
                why = self._fill(pool)
                if why is not None and not pool.items:
                    return why
                # A limit on the rate is kept by waiting before the next batch, not here.
                self._write(pool.take(wait=IDLE if self.throttle.free else BRIEF), done)
                self.most = max(self.most, pool.ready)
            if why == "paused":
                self._drain(pool, done)
            return why

    def _fill(self, pool: Pool) -> Stopped | None:
        """Claim batches while workers wait for some; why no more are to be had."""
        while pool.room > 0:
            room = self.size if self.limit is None else self._left(pool)
            if room <= 0:
                return "limit"
            if self.check is not None:
                room = min(room, self.check_every)
            self.throttle.wait(lambda: self.worker.must_stop() is None)
            tasks = self.worker.claim(self.throttle.batch(min(room, self.size)))
            if not tasks:
                return None if pool.items else self.worker.nothing_due()
            self.throttle.done(len(tasks))
            pool.give(tasks)
            if not self.throttle.free:
                return None  # what came back meanwhile is written first
        return None

    def _left(self, pool: Pool) -> int:
        assert self.limit is not None
        return self.limit - self.worker.done - pool.items

    def _write(self, came: list[BatchResult], done: Callable[[int], None]) -> None:
        for batch in came:
            before = self.worker.done
            self.worker.write(batch.tasks, self._made(batch))
            self._resize(len(batch.tasks), batch.seconds)
            done(self.worker.done - before)
            self.worker.tell(every=TELL_EVERY)
            if self.check is not None and self.worker.done - self.checked >= self.check_every:
                self.checked = self.worker.done
                judged_by(self.gallery, self.check())

    def _made(self, batch: BatchResult) -> Embedded:
        if batch.embedded is None:
            (task,) = batch.tasks
            return _killed(task.item, self.target)
        if self.seen_here is not None:
            check_sight(batch, self.seen_here)
        return batch.embedded

    def _resize(self, count: int, seconds: float) -> None:
        """Twice as many after a quick batch, half after a slow one."""
        settings = self.settings
        if seconds > 2 * QUICK:
            self.size = max(settings.batch, self.size // 2)
        elif count == self.size and seconds < QUICK:
            self.size = min(2 * self.size, settings.growth * settings.batch)

    def _drain(self, pool: Pool, done: Callable[[int], None]) -> None:
        """What workers have is written, as the local run writes the batch that it has."""
        pool.forget_unsent()
        until = time.monotonic() + DRAIN
        while pool.items and time.monotonic() < until:
            self._write(pool.take(wait=IDLE), done)
            pool.forget_unsent()

    def welcome(self, card: WorkerInfo) -> None:
        if not card.space.same_as(self.target):
            raise SpaceMismatch(
                f"the encoder on {card.host} makes vectors in {card.space}; the upgrade of "
                f"{self.gallery.location} leads to {self.target}: use that encoder"
            )

    def note(self, lost: LostWorker) -> None:
        """In the audit log, for those who ask later why it took longer."""
        self.sent_again += lost.items
        details = {"host": lost.host, "node": lost.node, "why": lost.why, "sent_again": lost.items}
        entry = AuditEvent(who=self.gallery.who, what="upgrade worker lost", details=details)
        self.worker.gallery.record(entry)
        if self.show:
            print(lost, file=sys.stderr)


def _elsewhere(items: object) -> Embedded:
    raise AssertionError("the cluster embeds, not this process")


def _killed(item: Item, space: Space) -> Embedded:
    empty = Embeddings(np.array([], np.str_), np.empty((0, space.dim), np.float32), space)
    return Embedded(empty, hopeless={item.id: DEADLY})
