"""A service's verbs from Python: `Client`, and the small values that it answers with."""

from __future__ import annotations

from midspan.client.client import Client
from midspan.client.upgrade import UpgradeVerbs
from midspan.client.values import (
    AuditEntry,
    Comparison,
    Curve,
    CurvePoint,
    Event,
    Failure,
    Flips,
    GalleryInfo,
    GateCheck,
    GateResult,
    GateVerdict,
    Hit,
    Item,
    JobStatus,
    QueryFlip,
    RankChange,
    SpaceCheck,
    SpaceInfo,
    UpgradePlan,
    UpgradeStatus,
    Verification,
    Written,
)

__all__ = [
    "AuditEntry",
    "Client",
    "Comparison",
    "Curve",
    "CurvePoint",
    "Event",
    "Failure",
    "Flips",
    "GalleryInfo",
    "GateCheck",
    "GateResult",
    "GateVerdict",
    "Hit",
    "Item",
    "JobStatus",
    "QueryFlip",
    "RankChange",
    "SpaceCheck",
    "SpaceInfo",
    "UpgradePlan",
    "UpgradeStatus",
    "UpgradeVerbs",
    "Verification",
    "Written",
]
