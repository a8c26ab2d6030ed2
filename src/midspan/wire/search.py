"""What a service answers about searches and items."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    id: str
    score: float  # as the metric says: cosine …; a threshold means this one
    rank_score: float  # the order; standardised while an upgrade merges two spaces
    space: str  # fingerprint
    space_role: str  # old or new while an upgrade is open, else live
    payload: dict[str, Any]
    uri: str | None
    thumbnail: str | None  # path of the service; `thumbnail(id)` fetches it
    vector: tuple[float, ...] | None  # with_vectors: in `space`


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer:
    results: tuple[Hit, ...]
    took_ms: float
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchManyAnswer:
    results: tuple[tuple[Hit, ...], ...]
    took_ms: float
    request_id: str


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
    took_ms: float
    request_id: str


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
class ItemsPage:
    items: tuple[Item, ...]
    next: str | None  # give it as `after`; None: this was the last page


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    written: int
    spaces: tuple[str, ...]  # fingerprints of the vectors that were stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    deleted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVector:
    id: str
    space: str  # fingerprint
    vector: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetCount:
    value: Any  # of the payload field; each one of a list counts
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facets:
    items: int  # that match the filter
    facets: dict[str, tuple[FacetCount, ...]]  # by field, the most frequent first
    complete: bool  # False: there are more items than one question looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateGroup:
    ids: tuple[str, ...]
    score: float  # of the most alike two


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    groups: tuple[DuplicateGroup, ...]  # the largest first
    items: int  # that were compared
    threshold: float
