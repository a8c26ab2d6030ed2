"""What a service answers about its gallery as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from midspan.wire.upgrade import UpgradeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceInfo:
    name: str
    dim: int
    metric: str
    role: str  # live, target, old, mapped, left
    encoder: bool  # the service can embed images into it


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryEntry:
    """One of the galleries of a service."""

    name: str
    default: bool  # the one that paths without a name mean
    items: int
    image_search: bool
    phase: str  # of its upgrade; none: no upgrade is open


@dataclass(frozen=True, slots=True, kw_only=True)
class Galleries:
    galleries: tuple[GalleryEntry, ...]  # the default first


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryInfo:
    location_kind: str
    name: str  # in this service
    items: int
    failed: int
    without: int  # items that no query can find
    by_space: dict[str, int]  # fingerprint → items that this space answers for
    spaces: dict[str, SpaceInfo]  # by fingerprint
    upgrade: UpgradeStatus | None
    payload_keys: tuple[str, ...]
    image_search: bool
    text_search: bool  # the encoder of its queries has a text tower
    uploads: bool
    can_upgrade: bool  # a new encoder, or its vectors, were given at the start
    destination: str | None  # name of the space that an upgrade would lead to
    orders: tuple[str, ...]  # that a backfill can go in, the usual one first
    modes: tuple[str, ...]  # that an upgrade could be in, the one with the fewest searches first


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
class AuditAnswer:
    entries: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`gallery` and `upgrade` with what `info` and `upgrade.status` say; `heartbeat`."""

    name: str
    data: dict[str, Any]
