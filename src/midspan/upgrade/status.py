"""How an upgrade stands, in numbers that come from the gallery itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from midspan.gallery import Entry, Gallery
from midspan.gallery.info import space_names
from midspan.upgrade.backfill import TELL_EVERY
from midspan.upgrade.record import Record

RECENT = 3 * TELL_EVERY  # seconds; a worker that told nothing since then does not count


@dataclass(frozen=True, slots=True)
class Status:
    """old + new + failed = all, always. `phase` is "none" if no upgrade is open."""

    location: str
    phase: str
    mode: str | None
    order: str | None
    from_space: str | None
    to_space: str | None
    old: int  # items that wait for a true new vector
    new: int
    failed: int
    all: int
    by_space: Mapping[str, int]  # items by the space that answers for them
    rate: float | None  # items a second, all workers together; None: nobody works
    seconds_left: float | None
    calibrated: bool  # scores of the old part are mapped
    mixing: Mapping[str, Any] | None  # what was tried and chosen; None: scores as they are
    rollback: bool  # promised
    gate: str | None
    reason: str | None  # why it is paused
    started: float | None

    @property
    def share(self) -> float:
        return self.new / self.all if self.all else 1.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share}


def status(gallery: Gallery) -> Status:
    state, counts = gallery.state, gallery.store.count()
    record, names = Record.of(state), space_names(state)
    rate = work_rate(gallery.trail(limit=200), now=time.time()) if counts.pending else None
    return Status(
        location=gallery.location,
        phase="none" if record is None else record.phase,
        mode=None if record is None else record.mode,
        order=None if record is None else record.order,
        from_space=None if record is None else names.get(record.old, record.old),
        to_space=None if state.target is None else names[state.target],
        old=counts.pending,
        new=counts.done,
        failed=counts.failed,
        all=counts.items,
        by_space={names[space]: count for space, count in counts.live.items()},
        rate=rate,
        seconds_left=counts.pending / rate if rate else None,
        calibrated=record is not None and record.scores is not None,
        mixing=None if record is None else record.mixing,
        rollback=record is not None and record.rollback,
        gate=None if record is None else record.gate,
        reason=None if record is None else record.reason,
        started=None if record is None else record.started,
    )


def work_rate(trail: list[Entry], *, now: float) -> float | None:
    """Sum over the workers of what each last told, if that is not long ago."""
    latest: dict[str, float] = {}
    for entry in trail:  # newest first
        if entry.what != "upgrade run" or now - entry.when > RECENT:
            continue
        details = entry.details
        latest.setdefault(details["worker"], details["written"] / max(details["seconds"], 1e-9))
    return sum(latest.values()) if latest else None
