"""What a service answers, as small frozen values; their fields are those of its JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# ---- gallery


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceInfo:
    name: str
    dim: int
    metric: str
    role: str  # live, target, old, mapped, left
    encoder: bool  # the service can embed images into it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    wanted: bool
    running: bool
    doing: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    at: float
    verdict: str  # PASS, WARN, FAIL
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeStatus:
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
    rollback: bool  # still promised
    gate: str | None
    gates: tuple[GateVerdict, ...]  # the newest first
    reason: str | None
    started: float | None
    job: JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryInfo:
    location_kind: str
    items: int
    failed: int
    without: int  # items that no query can find
    by_space: dict[str, int]  # fingerprint → items that this space answers for
    spaces: dict[str, SpaceInfo]  # by fingerprint
    upgrade: UpgradeStatus | None
    payload_keys: tuple[str, ...]
    image_search: bool
    uploads: bool
    can_upgrade: bool
    orders: tuple[str, ...]  # that a backfill can go in, the usual one first


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceCheck:
    name: str
    fingerprint: str
    vectors: int
    unusable: int
    unnormalised: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    ok: bool
    items: int
    spaces: tuple[SpaceCheck, ...]
    without: int
    first_without: tuple[str, ...]
    first_unusable: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]  # what is as it should be, and may surprise


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    who: str
    what: str
    details: dict[str, Any]
    when: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`gallery` and `upgrade` with what `info` and `upgrade.status` say; `heartbeat`."""

    name: str
    data: dict[str, Any]


# ---- search and items


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    id: str
    score: float
    space: str  # fingerprint
    space_role: str  # old or new
    payload: dict[str, Any]
    uri: str | None
    thumbnail: str | None  # path of the service; `thumbnail(id)` fetches it


@dataclass(frozen=True, slots=True, kw_only=True)
class RankChange:
    id: str
    change: str  # left, entered, moved
    before: int | None = field(metadata={"wire": "from"})  # rank, 1 is the best
    after: int | None = field(metadata={"wire": "to"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    before: tuple[Hit, ...]
    after: tuple[Hit, ...]
    flips: tuple[RankChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    id: str
    uri: str | None
    payload: dict[str, Any]
    revision: int
    created: float
    changed: float
    spaces: tuple[str, ...]  # fingerprints that it has a vector in
    space_role: str | None  # None: no query can find it
    thumbnail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    written: int
    spaces: tuple[str, ...]  # fingerprints of the vectors that were stored


# ---- upgrade


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradePlan:
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
    mixing: dict[str, Any] | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCheck:
    name: str
    value: float
    low: float | None
    high: float | None
    limit: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    verdict: str  # PASS, WARN, FAIL
    checks: tuple[GateCheck, ...]
    labelled: bool
    metric: str
    n_queries: int
    worst: tuple[str, ...]


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


# ---- answers that hold one of the above; what a client gives on is inside


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer:
    results: tuple[Hit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchManyAnswer:
    results: tuple[tuple[Hit, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemsPage:
    items: tuple[Item, ...]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailuresPage:
    failures: tuple[Failure, ...]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditAnswer:
    entries: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    status: str
