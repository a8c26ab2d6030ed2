"""The service's own worker: it continues whatever the gallery says is to be done.

Nothing of it lives in memory only. That the backfill is requested is a line in the audit log
("service run"), and so is each bit of progress; a mapping or a `forget` that was interrupted shows
in the phase. So a server that was killed looks at the gallery and continues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from midspan.errors import MidspanError
from midspan.gallery import AuditEvent, Gallery, State
from midspan.service import logs
from midspan.service.quality import Quality
from midspan.service.search_service import SearchService
from midspan.upgrade import (
    Embed,
    Embedded,
    GateResult,
    Latency,
    Record,
    Settings,
    Staged,
    Upgrade,
    run,
)
from midspan.upgrade.finish import forget

START = "service start"  # what was asked for, in case it is interrupted
RUN = "service run"  # the request, with its rate
SERVICE = "service@"  # what the name of a service's worker begins with
AUDIT_LINES = 20_000  # lines that are looked through for the request
LOOK = 1.0  # seconds between looks at the gallery
SLOWEST = 60.0  # seconds between tries after an error
POINTS = 25  # measurements along a backfill


@dataclass(frozen=True, slots=True)
class RunRequest:
    max_rate: float | None


class UpgradeWorker:
    """One thread. `wake` after a change saves it the wait for its next look."""

    def __init__(self, service: SearchService, quality: Quality) -> None:
        self._service, self._quality = service, quality
        self._stop = threading.Event()
        self._look = threading.Event()
        self._rate = _Rate()
        self._request: tuple[float | None, RunRequest | None] | None = (
            None  # by the upgrade's start
        )
        self.doing: str | None = None
        self.error: str | None = None
        self._thread = threading.Thread(target=self._loop, name="upgrade", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Within a batch; leases are given back, the request stays on record."""
        self._stop.set()
        self._look.set()
        if self._thread.ident is not None:
            self._thread.join()

    def wake(self) -> None:
        self.error = None
        self._look.set()

    @property
    def rate(self) -> float | None:
        return self._rate.now() if self.doing == "backfill" else None

    def request_run(self, gallery: Gallery, *, max_rate: float | None) -> None:
        """Put the request on record, in the caller's name, then go."""
        details = {"max_rate": max_rate}
        gallery.record(AuditEvent(who=gallery.who, what=RUN, details=details))
        record = Record.of(gallery.state)
        self._request = (None if record is None else record.started, RunRequest(max_rate))
        self.wake()

    def run_request(self) -> RunRequest | None:
        """Read from the audit log once for each upgrade, then kept."""
        record = Record.of(self._service.gallery.state)
        started = None if record is None else record.started
        if self._request is None or self._request[0] != started:
            self._request = (
                started,
                run_request(self._service.gallery.audit_log(limit=AUDIT_LINES)),
            )
        return self._request[1]

    # ---- the thread

    def _loop(self) -> None:
        pause = LOOK
        while not self._stop.is_set():
            self._look.wait(pause)
            self._look.clear()
            if self._stop.is_set():
                return
            try:
                self._continue()
                self.error, pause = None, LOOK
            except _Stopping:
                return
            except MidspanError as error:
                self._failed(str(error))
                pause = min(max(2.0, 2 * pause), SLOWEST)
            except Exception as error:
                logs.fault("upgrade worker", error)
                self._failed(f"a fault of the service ({type(error).__name__}); see its log")
                pause = min(max(2.0, 2 * pause), SLOWEST)
            finally:
                self.doing = None

    def _failed(self, message: str) -> None:
        if message != self.error:
            logs.event("upgrade worker", level=30, error=message)
        self.error = message

    def _continue(self) -> None:
        state = self._service.gallery.state
        record = Record.of(state)
        if record is not None and (record.phase in ("mapping", "forgetting") or _due(record)):
            # A route that does it at this moment is not disturbed; one that died is taken over.
            if self._service.stepping.acquire(blocking=False):
                try:
                    self._take_over(record)
                finally:
                    self._service.stepping.release()
        elif state.target is not None and (
            record is None or record.phase in ("running", "finished")
        ):
            self._backfill(state, record)

    def _take_over(self, record: Record) -> None:
        gallery = self._service.gallery
        if record.phase != "mapping":
            self.doing = "forgetting"
            forget(gallery)
            return
        self.doing = "mapping"
        asked = next(
            (e.details for e in gallery.audit_log(limit=AUDIT_LINES) if e.what == START), {}
        )
        Upgrade.start(
            gallery,
            to=gallery.state.spaces[record.new],
            mode=record.mode,
            bridge=record.bridge,
            order=asked.get("order", "random"),
        )

    def _backfill(self, state: State, record: Record | None) -> None:
        gallery = self._service.gallery
        if gallery.count().pending == 0:
            return
        request = self.run_request()
        if request is None and record is not None:
            return
        embed = self._service.embed_into(state.target)
        if embed is None:
            if request is not None:
                assert state.target is not None
                self._failed(
                    f"items wait for vectors of {state.spaces[state.target]}, and this service "
                    "has no encoder for it: start it with `new_encoder`"
                )
            return
        settings = self._service.settings
        self.doing = "backfill"
        self._rate = _Rate()
        rate = settings.max_rate if request is None else request.max_rate or settings.max_rate
        every = max(1, gallery.count().items // POINTS)
        measured = record is not None and self._quality.measure(gallery)
        judged = measured and record is not None and record.phase == "running"
        report = run(
            gallery,
            self._counted(embed, every=every if measured and not judged else None),
            max_rate=rate,
            latency=Latency(p99=self._p99, ceiling=settings.latency_ceiling),
            check=self._check() if judged else None,
            check_every=every,
            settings=Settings(batch=settings.batch),
        )
        if measured and not judged and report.stopped == "done":
            self._quality.measure(gallery)
        logs.event("backfill", stopped=report.stopped, written=report.written)

    def _p99(self) -> float | None:
        """Asked before each batch, and so the place to leave when the service closes."""
        if self._stop.is_set():
            raise _Stopping
        return self._service.metrics.recent.p99()

    def _counted(self, embed: Embed, *, every: int | None) -> Embed:
        """As it is, with a look at the clock; and a measurement each `every` items."""
        seen = measured = 0
        last = embed.embed if isinstance(embed, Staged) else embed  # of its steps, or the only one

        def counted(given: Any) -> Embedded:
            nonlocal seen, measured
            if self._stop.is_set():
                raise _Stopping
            if every is not None and seen - measured >= every:
                measured = seen
                self._quality.measure(self._service.gallery)
            made = last(given)
            count = len(made.vectors) + len(made.failed) + len(made.hopeless)
            self._rate.add(count)
            seen += count
            return made

        return Staged(read=embed.read, embed=counted) if isinstance(embed, Staged) else counted

    def _check(self) -> Callable[[], GateResult]:
        """The gate along the way: a FAIL pauses the upgrade."""
        return lambda: self._quality.judge(self._service.gallery)


def _due(record: Record) -> bool:
    """The time that a finished upgrade keeps its old vectors for is over."""
    return (
        record.phase == "finished"
        and record.keep_until is not None
        and record.keep_until <= time.time()
    )


def run_request(entries: Sequence[AuditEvent]) -> RunRequest | None:
    """Whether this upgrade's backfill was asked for, which comes newest first."""
    working = False
    for entry in entries:
        if entry.what == RUN:
            return RunRequest(max_rate=entry.details.get("max_rate"))
        if entry.what == "upgrade run" and entry.who.startswith(SERVICE):
            working = True  # the request itself may be further back than the lines we have
        if entry.what == "upgrade start":
            break
    return RunRequest(max_rate=None) if working else None


class _Stopping(BaseException):
    """The service closes: through everything that handles errors, and no further."""


class _Rate:
    """Items a second over the last moments."""

    def __init__(self, *, seconds: float = 15.0) -> None:
        self._seconds = seconds
        self._seen: list[tuple[float, int]] = [(time.monotonic(), 0)]
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        now = time.monotonic()
        with self._lock:
            self._seen.append((now, count))
            while len(self._seen) > 2 and self._seen[1][0] < now - self._seconds:
                self._seen.pop(0)

    def now(self) -> float | None:
        with self._lock:
            if len(self._seen) < 2:
                return None
            items = sum(count for _, count in self._seen[1:])
            return items / max(time.monotonic() - self._seen[0][0], 1e-9)
