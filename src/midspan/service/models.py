"""What goes in and out over HTTP, version 1. Unknown fields of a request are errors.

Fields may be added to answers; none is renamed or removed within /v1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

LARGEST_K = 1000
LARGEST_BATCH = 256  # query vectors in one request
LARGEST_WRITE = 2000  # items in one request: one transaction of a gallery
LARGEST_PAGE = 1000
LARGEST_DIM = 65_536

Id = Annotated[str, Field(min_length=1, max_length=512)]
K = Annotated[int, Field(ge=1, le=LARGEST_K)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Finite], Field(min_length=1, max_length=LARGEST_DIM)]
Filter = dict[str, Any]  # the JSON form of midspan.gallery.filters
SpaceRole = Literal["live", "target", "old", "mapped", "left"]
HitRole = Literal["old", "new"]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=False)


# ---- errors


class ErrorDetail(BaseModel):
    type: str  # UnknownId, SpaceMismatch, Unauthorized, Overloaded …
    message: str
    request_id: str


class ErrorAnswer(BaseModel):
    error: ErrorDetail


# ---- gallery


class Health(BaseModel):
    status: str


class SpaceInfo(BaseModel):
    name: str
    dim: int
    metric: str
    role: SpaceRole
    encoder: bool  # this service can embed images into it


class GalleryInfo(BaseModel):
    location_kind: str  # sqlite, postgresql, milvus …
    items: int
    failed: int
    without: int  # items that no query can find
    by_space: dict[str, int]  # fingerprint → items that this space answers for
    spaces: dict[str, SpaceInfo]  # by fingerprint
    upgrade: UpgradeStatus | None  # None if none is open and nothing is left to embed
    payload_keys: list[str]  # seen in a sample of the items, for filters
    image_search: bool  # whether /v1/search/image can answer now
    uploads: bool  # whether PUT takes images
    can_upgrade: bool  # a new encoder, or its vectors, were given at the start


class SpaceCheck(BaseModel):
    name: str
    fingerprint: str
    vectors: int
    unusable: int
    unnormalised: int
    duplicates: int


class VerifyAnswer(BaseModel):
    ok: bool
    items: int
    spaces: list[SpaceCheck]
    without: int
    first_without: list[str]
    first_unusable: list[str]
    problems: list[str]


# ---- search


class SearchOptions(Body):
    k: K = 10
    filter: Filter | None = None
    threshold: Finite | None = None
    exact: bool = False


class ItemSearch(SearchOptions):
    id: Id


class VectorSearch(SearchOptions):
    """One `vector`, or several `vectors`; `space` is a fingerprint or a name, default the live."""

    vector: Vector | None = None
    vectors: Annotated[list[Vector], Field(min_length=1, max_length=LARGEST_BATCH)] | None = None
    space: str | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> VectorSearch:
        if (self.vector is None) == (self.vectors is None):
            raise ValueError("give either vector or vectors")
        return self


class HitModel(BaseModel):
    id: str
    score: float
    space: str  # fingerprint
    space_role: HitRole
    payload: dict[str, Any]
    uri: str | None
    thumbnail: str | None  # None: there is no image that this service may show


class SearchAnswer(BaseModel):
    results: list[HitModel]
    took_ms: float
    request_id: str


class SearchManyAnswer(BaseModel):
    results: list[list[HitModel]]
    took_ms: float
    request_id: str


class Flip(BaseModel):
    id: str
    change: Literal["left", "entered", "moved"]
    from_: int | None = Field(serialization_alias="from")  # rank before, 1 is the best
    to: int | None  # rank after


class CompareAnswer(BaseModel):
    before: list[HitModel]
    after: list[HitModel]
    flips: list[Flip]
    took_ms: float
    request_id: str


# ---- items


class ItemModel(BaseModel):
    id: str
    uri: str | None
    payload: dict[str, Any]
    revision: int
    created: float
    changed: float
    spaces: list[str]  # fingerprints that it has a vector in
    space_role: HitRole | None  # of the vector that answers; None: it cannot be found
    thumbnail: str | None


class ItemsAnswer(BaseModel):
    items: list[ItemModel]
    next: str | None  # give it as `after`; None: this was the last page


class ItemWrite(Body):
    """An item with a vector that was made elsewhere."""

    vector: Vector
    space: str | None = None  # fingerprint or name; default the space that new items come in
    payload: dict[str, Any] = {}
    uri: str | None = Field(default=None, max_length=4096)


class NewItem(Body):
    id: Id
    vector: Vector
    payload: dict[str, Any] = {}
    uri: str | None = Field(default=None, max_length=4096)


class ItemsWrite(Body):
    """Whole or not at all."""

    items: Annotated[list[NewItem], Field(min_length=1, max_length=LARGEST_WRITE)]
    space: str | None = None
    mode: Literal["add", "replace", "put"] = "put"


class PayloadWrite(Body):
    payload: dict[str, Any]


class Written(BaseModel):
    written: int
    spaces: list[str]  # fingerprints of the vectors that were stored


class Deleted(BaseModel):
    deleted: int


# ---- upgrade


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


GalleryInfo.model_rebuild()
