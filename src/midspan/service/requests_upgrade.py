"""What comes in over HTTP about an upgrade."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from midspan.service.requests import Body
from midspan.upgrade import ORDERS


def _known_order(name: str) -> str:
    if name not in ORDERS:
        raise ValueError(f"expected one of {', '.join(ORDERS)}")
    return name


Order = Annotated[
    str,
    AfterValidator(_known_order),
    WithJsonSchema({"type": "string", "enum": list(ORDERS)}),
]
Share = Annotated[float, Field(ge=0, le=1)]
Reason = Annotated[str, Field(min_length=1, max_length=500)]


class UpgradeSettings(Body):
    """Where to is fixed at the start of the service: its new encoder or new vectors."""

    mode: Literal["direct", "map-query", "map-gallery", "both"] = "direct"
    order: Order | None = None  # None: what ranks best in this mode
    sample: Annotated[int, Field(ge=0, le=5000)] = 300  # items that are embedded first; 0: none


class UpgradeStart(UpgradeSettings):
    run: bool = False  # also begin the backfill
    traffic: Share = 1.0  # that the new way answers; 0: shadow
    override: Reason | None = None  # why, although the encoder's own test failed; it is recorded


class UpgradeTraffic(Body):
    traffic: Share


class UpgradeRun(Body):
    max_rate: Annotated[float, Field(gt=0, le=1e9)] | None = None  # items a second


class UpgradePause(Body):
    reason: str | None = Field(default=None, max_length=200)


class UpgradeResume(Body):
    override: Reason | None = None  # why, although the gate failed; it is recorded


class UpgradeFinish(Body):
    force: bool = False  # with items that answer with a mapped vector, or without an index
    override: Reason | None = None  # why, although the gate did not pass; it is recorded
    keep_old: Annotated[float, Field(ge=0, le=1e9)] | None = None  # seconds; None: until `forget`


class UpgradeRollback(Body):
    drop: bool = False


class Empty(Body):
    pass
