"""What a service answers about steps that take long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from midspan.wire.errors import ErrorDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    label: str  # what is being done: embed, map, order …
    finished: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    job_id: str
    kind: str  # upgrade plan, upgrade start …
    state: str  # queued, running, done, failed, cancelled
    who: str
    created: float
    started: float | None
    ended: float | None
    progress: JobProgress | None
    cancelling: bool  # it was asked to stop and will at the next safe point
    error: ErrorDetail | None  # of a failed one: what a quick failure answers
    result: dict[str, Any] | None  # of a done one: what a quick success answers; not kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    jobs: tuple[Job, ...]  # the newest first
