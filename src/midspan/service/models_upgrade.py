"""What goes in and out over HTTP about an upgrade, and the audit trail; see models.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)


class JobStatus(BaseModel):
    """This server's own worker."""

    wanted: bool  # on record in the gallery: a restarted server goes on
    running: bool
    doing: str | None  # backfill, mapping, finishing …
    error: str | None  # why it does not go on; tried again by itself


class GateVerdict(BaseModel):
    at: float
    verdict: str  # PASS, WARN, FAIL
    text: str


class UpgradeStatus(BaseModel):
    phase: str  # none, mapping, running, paused, finishing
    mode: str | None
    order: str | None
    from_space: str | None
    to_space: str | None
    old: int  # old + new + failed = all
    new: int
    failed: int
    all: int
    share: float
    by_space: dict[str, int]  # by name
    rate: float | None  # items a second
    seconds_left: float | None
    calibrated: bool
    rollback: bool
    gate: str | None
    gates: list[GateVerdict]  # the newest first
    reason: str | None
    started: float | None
    job: JobStatus


class UpgradeSettings(Body):
    """Where to is fixed at the start of the service: its new encoder or new vectors."""

    mode: Literal["direct", "map-query", "map-gallery"] = "direct"
    order: str = Field(default="uncertainty", max_length=64)
    calibrate: bool | None = None  # None: where it ranks better on a labelled sample


class UpgradeStart(UpgradeSettings):
    run: bool = False  # also begin the backfill


class UpgradeRun(Body):
    max_rate: Annotated[float, Field(gt=0, le=1e9)] | None = None  # items a second


class UpgradePause(Body):
    reason: str | None = Field(default=None, max_length=200)


class UpgradeFinish(Body):
    force: bool = False


class UpgradeRollback(Body):
    drop: bool = False


class Empty(Body):
    pass


class PlanAnswer(BaseModel):
    mode: str
    order: str
    from_space: str
    to_space: str
    items: int
    to_embed: int
    searches_per_query: int
    disk_bytes: int
    seconds_per_item: float | None
    seconds: float | None
    sample: int
    gate: dict[str, Any] | None
    curve: dict[str, Any] | None
    mixing: dict[str, Any] | None = None
    notes: list[str]


class GateCheck(BaseModel):
    name: str
    value: float
    low: float | None
    high: float | None
    limit: float
    verdict: str


class GateAnswer(BaseModel):
    verdict: str
    checks: list[GateCheck]
    labelled: bool
    metric: str
    n_queries: int
    worst: list[str]


class CurvePoint(BaseModel):
    fraction: float  # of the items that had their new vector
    metric: str  # precision@10 or overlap@10, and negative_flips
    value: float
    at: float


class CurveAnswer(BaseModel):
    points: list[CurvePoint]
    baseline: CurvePoint | None  # the old service on the same queries


class QueryFlip(BaseModel):
    query_id: str
    before: list[str]
    after: list[str]
    before_rank: int | None  # of the first right result; None: not among those shown
    after_rank: int | None


class FlipsAnswer(BaseModel):
    flips: list[QueryFlip]
    queries: int
    labelled: bool


class FailureModel(BaseModel):
    id: str
    uri: str | None
    reason: str
    attempts: int
    when: float


class FailuresAnswer(BaseModel):
    failures: list[FailureModel]
    next: str | None


class AuditEntry(BaseModel):
    who: str
    what: str
    details: dict[str, Any]
    when: float


class AuditAnswer(BaseModel):
    entries: list[AuditEntry]
