"""What a service answers about an upgrade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    wanted: bool
    running: bool
    doing: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    at: float
    verdict: str  # PASS, INCONCLUSIVE, FAIL
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmTimes:
    """Live image searches since the upgrade began, of all processes."""

    searches: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Queries that were answered as before and asked of the new way too, without being answered."""

    queries: int
    overlap: float  # mean share of the old way's hits that the new way finds too
    first_changed: float  # share of the queries whose first hit is another one
    p50_ms: float  # of the new way
    p99_ms: float
    dropped: int  # queries that were not compared, as others were waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeStatus:
    phase: str  # none, mapping, running, paused, finished, forgetting
    space: str  # name of the one that new items come in
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
    standardised: bool  # scores of old and new vectors are merged over a sample
    traffic: float | None  # share of the queries that the new way answers; 0: shadow; None: over
    arms: dict[str, ArmTimes]  # by the way that answered: old (as before), new
    compared: Compared | None
    rollback: bool  # still promised
    gate: str | None
    gates: tuple[GateVerdict, ...]  # the newest first
    evidence: dict[str, Any] | None  # of the last: metric, queries, share, limits, before …
    reason: str | None
    started: float | None
    job: JobStatus
    would_vanish: int | None  # items that a rollback would leave without a vector
    override: dict[str, Any] | None  # who went on against the gate: who, reason, gate, at
    keep_until: float | None  # finished: when the old vectors may go; None: when asked


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePlan:
    mode: str
    order: str
    from_space: str
    to_space: str
    items: int
    to_embed: int
    searches_per_query: int
    encoders_per_query: int
    disk_bytes: int
    seconds_per_item: float | None
    seconds: float | None
    sample: int
    gate: dict[str, Any] | None
    curve: dict[str, Any] | None
    standardised: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    name: str
    value: float
    low: float | None
    high: float | None
    limit: float
    verdict: str
    more_queries: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateFlips:
    negative: float
    negative_low: float
    negative_high: float
    positive: float
    chance: float
    p_worse: float
    n_queries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    verdict: str  # PASS, INCONCLUSIVE, FAIL
    checks: tuple[GateCheck, ...]
    flips: GateFlips | None
    labelled: bool
    metric: str
    n_queries: int
    worst: tuple[str, ...]
    notes: tuple[str, ...]  # what this evidence can and cannot tell


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    fraction: float
    metric: str
    value: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    points: tuple[CurvePoint, ...]
    baseline: CurvePoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFlip:
    query_id: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    before_rank: int | None
    after_rank: int | None
    right: tuple[str, ...]  # those of both that are right: same class, clicked, or in the reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    flips: tuple[QueryFlip, ...]
    queries: int
    labelled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    id: str
    uri: str | None
    reason: str
    attempts: int
    when: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresPage:
    failures: tuple[Failure, ...]
    next: str | None
