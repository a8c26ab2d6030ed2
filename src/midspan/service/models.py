"""What goes in and out over HTTP, version 1. Unknown fields of a request are errors.

Fields may be added to answers; none is renamed or removed within /v1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from midspan.service.models_upgrade import Body, UpgradeStatus

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
    orders: list[str]  # that a backfill can go in, the usual one first


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
    notes: list[str]


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
    payload: dict[str, Any] = Field(default_factory=dict)
    uri: str | None = Field(default=None, max_length=4096)


class NewItem(Body):
    id: Id
    vector: Vector
    payload: dict[str, Any] = Field(default_factory=dict)
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
