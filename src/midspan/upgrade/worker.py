"""One process's share of a backfill: lease items, embed them, write what came of it."""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from midspan.errors import MidspanError, SpaceMismatch
from midspan.gallery import AuditEvent, Failed, Gallery, Task
from midspan.gallery.records import Record
from midspan.html_table import html_facts
from midspan.spaces import Space
from midspan.upgrade.embed import Embed, Embedded, embed_all, read_all
from midspan.upgrade.throttle import periodically

BATCH = 64  # items embedded and written at once, at first
GROWTH = 32  # times as many at most, while a batch takes less than a second
LEASE = 120.0  # seconds that a batch is this worker's; another takes it after that
RENEWALS = 3  # in the time of one lease: two may fail
RETRIES = 3  # then an item goes to the failure list
BACK_OFF = 2.0  # seconds before the first retry, doubled for each further one

log = logging.getLogger("midspan.upgrade")

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

    def __repr__(self) -> str:
        return (
            f"Report({self.stopped}: {self.written:,} written in {self.seconds:.1f} s "
            f"({self.rate:,.0f}/s); old {self.old:,} + new {self.new:,} + failed {self.failed:,} = "
            f"{self.all:,})"
        )

    def _repr_html_(self) -> str:
        return html_facts("backfill", asdict(self) | {"seconds": round(self.seconds, 1)})

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

    Args:
        batch: Items that are embedded and written at once, at first.
        growth: A batch becomes so many times as large at most, while it takes less than a second.
        lease: Seconds that a batch is this worker's; another one takes it after that.
        retries: So many tries after the first; then the item has failed.
        back_off: Seconds before the first retry, doubled for each further one.
        wait: For items that others hold or that failed a moment ago.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import Settings
        >>> old = ms.Embeddings(np.array(["a", "b", "c"]), np.eye(3), ms.Space("old", 3))
        >>> new = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("new", 2))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> upgrade.run(new, settings=Settings(batch=1, retries=0)).written
        2
    """

    batch: int = BATCH
    growth: int = GROWTH
    lease: float = LEASE
    retries: int = RETRIES
    back_off: float = BACK_OFF
    wait: bool = True  # for items that others hold or that failed a moment ago


class Worker:
    """One process's share of the work."""

    def __init__(
        self, gallery: Gallery, embed: Embed, *, target: Space, settings: Settings
    ) -> None:
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
        tasks = self.gallery.work.claim(worker=self.name, limit=count, seconds=self.settings.lease)
        if tasks and self.must_stop() is not None:  # paused meanwhile
            self.gallery.work.release(self.name)
            return []
        return tasks

    def renewing_leases(self) -> AbstractContextManager[None]:
        """However long an encoder takes. A process that dies renews nothing, and another one takes
        its batch over when the lease ends.
        """
        seconds = self.settings.lease

        def renew() -> None:
            try:
                self.gallery.work.renew(self.name, seconds=seconds)
            except MidspanError as error:  # the next renewal may succeed, and a lost lease is safe
                log.warning("the leases of %s were not renewed: %s", self.name, error)

        return periodically(renew, every=seconds / RENEWALS, name="leases")

    def nothing_due(self) -> Stopped | None:
        """Why to stop, or None: others hold the rest, or it failed a moment ago."""
        if (why := self.must_stop()) is not None:
            return why
        if not self.gallery.work.pending_exists():
            return "done"
        return None if self.settings.wait else "idle"

    def read(self, tasks: Sequence[Task]) -> Any | None:
        return read_all(self.embed, [task.item for task in tasks])

    def made(self, tasks: Sequence[Task], read: Any | None) -> Embedded:
        embedded = embed_all(
            self.embed, [task.item for task in tasks], space=self.target, read=read
        )
        if not embedded.vectors.space.same_as(self.target):
            raise SpaceMismatch(
                f"these vectors are in {embedded.vectors.space}; the upgrade of "
                f"{self.gallery.location} leads to {self.target}: use that encoder, or its vectors"
            )
        return embedded

    def write(self, tasks: Sequence[Task], embedded: Embedded) -> None:
        revisions = {task.item.id: task.item.revision for task in tasks}
        if len(embedded.vectors):
            expected = [revisions[id] for id in embedded.vectors.ids.tolist()]
            try:
                self.written += self.gallery.add_missing_vectors(
                    embedded.vectors, revisions=expected
                )
            except SpaceMismatch:
                if self.must_stop() != "ended":
                    raise
                return  # rolled back while these were embedded: they are not needed any more
        self._report_failures(embedded, tasks, revisions)

    def _report_failures(
        self, embedded: Embedded, tasks: Sequence[Task], revisions: dict[str, int]
    ) -> None:
        hopeless = [Failed(id, revisions[id], why) for id, why in embedded.hopeless.items()]
        later: dict[float, list[Failed]] = {}
        for task in tasks:
            if (why := embedded.failed.get(task.item.id)) is None:
                continue
            report = Failed(task.item.id, task.item.revision, why)
            if task.attempts + 1 >= self.settings.retries:
                hopeless.append(report)
            else:
                later.setdefault(self.settings.back_off * 2**task.attempts, []).append(report)
        if hopeless:
            self.gallery.work.fail(hopeless, retry_after=None)
        for seconds, reports in later.items():
            self.gallery.work.fail(reports, retry_after=seconds)
            self.put_off += len(reports)
        self.given_up += len(hopeless)

    def tell(self, *, every: float) -> None:
        """A line of true progress in the audit log, from which `status` has its rate."""
        now = time.monotonic()
        if now - self._told < every or self.written == self._told_written:
            return
        details = {
            "worker": self.name,
            "written": self.written - self._told_written,
            "seconds": round(now - self._told, 3),
            "given_up": self.given_up,
        }
        self.gallery.record(AuditEvent(who=self.gallery.who, what="upgrade run", details=details))
        self._told, self._told_written = now, self.written

    def leave(self) -> None:
        self.gallery.work.release(self.name)
        self.tell(every=0.0)

    def report(self, stopped: Stopped) -> Report:
        counts = self.gallery.count()
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
