"""How an upgrade stands, in numbers that come from the gallery itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from midspan.gallery import AuditEvent, Counts, Gallery
from midspan.gallery.info import space_names
from midspan.gallery.records import PROMISING, Record
from midspan.html_table import html_facts
from midspan.upgrade.arms import ArmTimes, Compared, arm_times, compared
from midspan.upgrade.backfill import TELL_EVERY

RECENT = 3 * TELL_EVERY  # seconds; a worker that reported nothing since then does not count


@dataclass(frozen=True, slots=True)
class Status:
    """old + new + failed = all, always.

    `phase` is "none" if no upgrade is open: then all items are in `space`, but for those (`old`,
    `failed`) that wait for a vector in it.
    """

    location: str
    phase: str
    space: str  # name of the one that new items come in
    mode: str | None
    order: str | None
    from_space: str | None
    to_space: str | None
    old: int  # items that wait for a true new vector
    new: int
    failed: int
    all: int
    by_space: Mapping[str, int]  # items by the space that answers for them
    rate: float | None  # items a second, all workers together; None: nobody works, or may
    seconds_left: float | None
    standardised: bool  # scores of the two parts are merged over a sample; else as they are
    traffic: float | None  # share of the queries that the new way answers; 0: shadow; None: over
    rollback: bool  # promised
    gate: str | None
    evidence: Mapping[str, Any] | None  # of the gate: metric, queries, share, limits, …
    arms: Mapping[str, ArmTimes]  # live searches: old (as before), new; of all processes
    compared: Compared | None  # queries that the old way answered, asked of the new way as well
    reason: str | None  # why it is paused
    indexes: Mapping[str, Mapping[str, Any]]  # by the name of a space: rows, kind, state, …
    started: float | None
    would_vanish: int | None  # items that a rollback would leave without a vector
    override: Mapping[str, Any] | None  # who continued despite the gate: who, reason, gate, at
    keep_until: float | None  # finished: when the old vectors may go; None: when asked

    @property
    def share(self) -> float:
        return self.new / self.all if self.all else 1.0

    def none_words(self) -> str:
        """Of a gallery without an upgrade."""
        there = self.all - self.old - self.failed
        words = f"no upgrade is open; {there:,} items in {self.space!r}"
        if self.old:
            words += f", {self.old:,} wait for a vector in it (midspan upgrade run)"
        return words + (f", {self.failed:,} failed" if self.failed else "")

    def __repr__(self) -> str:
        if self.phase == "none":
            return f"Status({self.location}: {self.none_words()})"
        way = f", {self.from_space} → {self.to_space}" if self.to_space else ""
        return (
            f"Status({self.location}: {self.phase}{way}; old {self.old:,} + new {self.new:,} + "
            f"failed {self.failed:,} = {self.all:,})"
        )

    def _repr_html_(self) -> str:
        facts = self.to_dict()
        for name in ("by_space", "indexes", "override", "evidence", "arms", "compared"):
            del facts[name]
        return html_facts("status of an upgrade", facts)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share}


def status(gallery: Gallery) -> Status:
    state, counts = gallery.state, gallery.count()
    record, names = Record.of(state), space_names(state)
    phase = "none" if record is None else record.phase
    working = counts.pending and phase not in ("mapping", "paused", "forgetting")
    rate = work_rate(gallery.audit_log(limit=200), now=time.time()) if working else None
    return Status(
        location=gallery.location,
        phase=phase,
        space=names[state.live[0]],
        mode=None if record is None else record.mode,
        order=None if record is None else record.order,
        from_space=None if record is None else names.get(record.old, record.old),
        to_space=None if record is None else names.get(record.new, record.new),
        old=counts.pending,
        new=counts.done,
        failed=counts.failed,
        all=counts.items,
        by_space={names[space]: count for space, count in counts.live.items()},
        rate=rate,
        seconds_left=counts.pending / rate if rate else None,
        standardised=phase in PROMISING and record is not None and record.sample is not None,
        traffic=record.traffic if record is not None and phase in PROMISING else None,
        rollback=record is not None and record.rollback,
        gate=None if record is None else record.gate,
        evidence=None if record is None else record.evidence,
        arms=arm_times(gallery),
        compared=compared(gallery),
        reason=None if record is None else record.reason,
        started=None if record is None else record.started,
        indexes={
            names[space]: asdict(index)
            for space, index in gallery.index_status().items()
            if space in names
        },
        would_vanish=None if record is None else would_vanish(record, counts),
        override=None if record is None else record.override,
        keep_until=None if record is None else record.keep_until,
    )


def would_vanish(record: Record, counts: Counts) -> int:
    """Items without an old vector: no query would find them after a rollback."""
    return counts.items - counts.stored.get(record.old, 0)


def work_rate(entries: list[AuditEvent], *, now: float) -> float | None:
    """Sum over the workers of what each last reported of this upgrade, if that is not long ago."""
    latest: dict[str, float] = {}
    for entry in entries:  # newest first
        if entry.what in ("upgrade start", "upgrade rollback"):
            break  # before it was other work
        if entry.what != "upgrade run" or now - entry.when > RECENT:
            continue
        details = entry.details
        latest.setdefault(details["worker"], details["written"] / max(details["seconds"], 1e-9))
    return sum(latest.values()) if latest else None
