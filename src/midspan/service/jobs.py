"""Steps that may take long, as jobs: each has an id, progress, a result or an error.

A step that is done within a few seconds is answered at once, and its job is soon forgotten. One
that takes longer is kept: its beginning and its end are lines in the gallery's audit log, so that
after a restart, or in another process, it can still be asked for.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from midspan import progress
from midspan.gallery import AuditEvent, Gallery
from midspan.service import logs
from midspan.service.errors import Cancelled, NotFound, NotPossible, describe
from midspan.service.search_service import SearchService
from midspan.wire import ErrorDetail, Job, JobProgress

State = Literal["queued", "running", "done", "failed", "cancelled"]
WHAT = "service job"  # of the lines in the audit log
KEPT = 200  # jobs in memory
LOG = 1_000  # lines of jobs in the audit log that are looked at
INTERRUPTED = (
    "the service stopped before this job ended; look at the upgrade's status, then ask again"
)


@dataclass(slots=True)
class JobRun:
    """A job of this process; its fields change in the thread that does the work."""

    id: str
    kind: str
    gallery: Gallery  # in the caller's name
    request_id: str
    created: float = field(default_factory=time.time)
    state: State = "queued"
    started: float | None = None
    ended: float | None = None
    progress: JobProgress | None = None
    cancelling: bool = False
    error: ErrorDetail | None = None
    result: dict[str, Any] | None = None
    kept: bool = False  # on record in the audit log
    future: asyncio.Future[Any] | None = None

    def check(self) -> None:
        """Called where the work can be left; Cancelled if somebody asked for it."""
        if self.cancelling:
            raise Cancelled(f"the job {self.kind!r} was cancelled")

    def report(self, label: str, finished: int, total: int) -> None:
        self.progress = JobProgress(label=label, finished=finished, total=total)
        self.check()

    def to_wire(self) -> Job:
        return Job(
            job_id=self.id,
            kind=self.kind,
            state=self.state,
            who=self.gallery.who,
            created=self.created,
            started=self.started,
            ended=self.ended,
            progress=self.progress,
            cancelling=self.cancelling and self.state in ("queued", "running"),
            error=self.error,
            result=self.result,
        )


Work = Callable[[JobRun], dict[str, Any]]


class Jobs:
    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._since = time.time()
        self._jobs: OrderedDict[str, JobRun] = OrderedDict()
        self._lock = threading.Lock()
        self.on_end: Callable[[], None] = lambda: None  # called in the thread of the job

    # ---- on the event loop

    def begin(
        self, kind: str, work: Work, *, gallery: Gallery, request_id: str, quick: bool
    ) -> JobRun:
        """Queue it; a quick one never behind those that take long. The future raises its error."""
        job = JobRun(os.urandom(8).hex(), kind, gallery, request_id)
        executor = self._service.admin if quick else self._service.jobs
        job.future = executor.begin(self._run, job, work)
        self._jobs[job.id] = job
        for old in [one for one in self._jobs.values() if one.ended is not None]:
            if len(self._jobs) <= KEPT:
                break
            del self._jobs[old.id]
        return job

    def keep(self, job: JobRun) -> None:
        """Its id is handed out: put it on record."""
        with self._lock:
            if job.kept:
                return
            job.kept = True
            self._record(job, state="running" if job.ended is None else job.state)

    def close(self) -> None:
        """What still runs is asked to stop at its next safe point."""
        for job in self._jobs.values():
            job.cancelling = True

    # ---- in any thread

    def get(self, id: str) -> Job:
        if (known := self._jobs.get(id)) is not None:
            return known.to_wire()
        for job in self._recorded():
            if job.job_id == id:
                return job
        raise NotFound("there is no job with this id")

    def listing(self) -> list[Job]:
        """The newest first: those of this process that still run or are on record, and others'."""
        own = [job.to_wire() for job in self._jobs.values() if job.kept or job.ended is None]
        known = {job.job_id for job in own}
        jobs = [*own, *(job for job in self._recorded() if job.job_id not in known)]
        return sorted(jobs, key=lambda job: job.created, reverse=True)[:KEPT]

    def running(self) -> list[Job]:
        """Of this process; reads nothing."""
        return [job.to_wire() for job in list(self._jobs.values()) if job.ended is None]

    def cancel(self, id: str) -> Job:
        job = self._jobs.get(id)
        if job is None:
            self.get(id)
            raise NotPossible("this job is not one of this process; it cannot be cancelled here")
        with self._lock:
            if job.ended is not None:
                raise NotPossible(f"this job has ended: {job.state}")
            job.cancelling = True
        return job.to_wire()

    def _run(self, job: JobRun, work: Work) -> dict[str, Any]:
        job.state, job.started = "running", time.time()
        try:
            job.check()
            with progress.watched(job.report):
                result = work(job)
        except BaseException as error:
            self._failed(job, error)
            raise
        self._end(job, "done", result=result)
        return result

    def _failed(self, job: JobRun, error: BaseException) -> None:
        described = describe(error, request_id=job.request_id, hide=self._service.hidden)
        if described is None:
            logs.fault("job", error, request_id=job.request_id, job=job.id, kind=job.kind)
            told = ErrorDetail(
                type="Internal",
                message="this is a fault of the service; its log has more under this id",
                request_id=job.request_id,
            )
        else:
            told = described.detail
            logs.event("job failed", level=30, job=job.id, kind=job.kind, error=told.message)
        cancelled = isinstance(error, Cancelled)
        details = {"job": job.id, "error": told.type, "message": told.message}
        what = f"{job.kind} {'cancelled' if cancelled else 'refused'}"
        self._write(job.gallery, AuditEvent(who=job.gallery.who, what=what, details=details))
        self._end(job, "cancelled" if cancelled else "failed", error=told)

    def _end(
        self,
        job: JobRun,
        state: State,
        *,
        result: dict[str, Any] | None = None,
        error: ErrorDetail | None = None,
    ) -> None:
        with self._lock:
            job.result, job.error = result, error
            job.state, job.ended = state, time.time()
            if job.kept:
                self._record(job, state=state)
        self.on_end()

    # ---- the audit log

    def _record(self, job: JobRun, *, state: State) -> None:
        details = {
            "job": job.id,
            "kind": job.kind,
            "state": state,
            "created": job.created,
            "error": None if job.error is None else asdict(job.error),
        }
        self._write(job.gallery, AuditEvent(who=job.gallery.who, what=WHAT, details=details))

    def _write(self, gallery: Gallery, event: AuditEvent) -> None:
        """The audit log is not worth losing the job's own error for."""
        try:
            gallery.record(event)
        except Exception as error:
            logs.fault("audit log of a job", error, what=event.what)

    def _recorded(self) -> list[Job]:
        """From the audit log. One without an end was interrupted, or runs in another process."""
        first: dict[str, AuditEvent] = {}
        last: dict[str, AuditEvent] = {}
        for entry in self._service.gallery.audit_log(limit=LOG, what=WHAT):  # newest first
            last.setdefault(entry.details["job"], entry)
            first[entry.details["job"]] = entry
        return [_from_log(first[id], last[id], since=self._since) for id in last]


def _from_log(first: AuditEvent, last: AuditEvent, *, since: float) -> Job:
    told: Mapping[str, Any] = last.details
    state, error = told["state"], told["error"]
    ended = None if state == "running" else last.when
    if state == "running" and first.when < since:
        state, ended = "failed", last.when
        error = {"type": "Interrupted", "message": INTERRUPTED, "request_id": ""}
    return Job(
        job_id=told["job"],
        kind=told["kind"],
        state=state,
        who=first.who,
        created=told["created"],
        started=None,
        ended=ended,
        progress=None,
        cancelling=False,
        error=None if error is None else ErrorDetail(**error),
        result=None,
    )
