"""How an upgrade stands, in numbers that come from the gallery itself."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from midspan.errors import MidspanError
from midspan.gallery import AuditEvent, Counts, Gallery
from midspan.gallery.info import space_names
from midspan.gallery.records import PROMISING, Record
from midspan.gallery.routing import Arm
from midspan.html_table import html_facts
from midspan.upgrade.backfill import TELL_EVERY

RECENT = 3 * TELL_EVERY  # seconds; a worker that told nothing since then does not count


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
    reason: str | None  # why it is paused
    indexes: Mapping[str, Mapping[str, Any]]  # by the name of a space: rows, kind, state, …
    started: float | None
    would_vanish: int | None  # items that a rollback would leave without a vector
    override: Mapping[str, Any] | None  # who went on against the gate: who, reason, gate, at
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
        for name in ("by_space", "indexes", "override", "evidence", "arms"):
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


def work_rate(trail: list[AuditEvent], *, now: float) -> float | None:
    """Sum over the workers of what each last told of this upgrade, if that is not long ago."""
    latest: dict[str, float] = {}
    for entry in trail:  # newest first
        if entry.what in ("upgrade start", "upgrade rollback"):
            break  # before it was other work
        if entry.what != "upgrade run" or now - entry.when > RECENT:
            continue
        details = entry.details
        latest.setdefault(details["worker"], details["written"] / max(details["seconds"], 1e-9))
    return sum(latest.values()) if latest else None


# ---- live searches by the way that answered, as before or the new one: counts and times ----------
# Each process counts in buckets of time and adds them to the catalogue now and then, so that every
# process and every command sees the searches of all. A new upgrade begins from nothing.

NAME = "search times"  # of the blob
EVERY = 10.0  # seconds between two writes
SHORTEST = 1e-5  # seconds: the floor of the first bucket
STEP = math.log(1.1)  # a bucket is a tenth wider than the one before: times are exact to 5 %
ARMS: tuple[Arm, ...] = ("old", "new")

log = logging.getLogger("midspan.upgrade")


@dataclass(frozen=True, slots=True)
class ArmTimes:
    """old: as before the upgrade. new: the new way."""

    searches: int
    p50_ms: float
    p99_ms: float


class ArmLog:
    """Of one process."""

    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._written = time.monotonic()

    def note(self, arm: Arm, seconds: float) -> None:
        """Written in the background when it is time."""
        with self._lock:
            self._counts[_bucket(arm, seconds)] += 1
            if time.monotonic() - self._written < EVERY:
                return
            self._written = time.monotonic()
        threading.Thread(target=self._try_flush, name="search times", daemon=True).start()

    def _try_flush(self) -> None:
        try:
            self.flush()
        except MidspanError as error:
            log.warning("the times of searches could not be written: %s", error)

    def flush(self) -> None:
        with self._lock:
            mine, self._counts = self._counts, Counter()
        record = Record.of(self._gallery.state)
        if not mine or record is None:
            return
        began = record.started

        def added(kept: bytes | None) -> bytes:
            before = json.loads(kept) if kept else {}
            same = before.get("started") == began
            total = Counter[str](before["counts"] if same else {})
            total.update(mine)
            return json.dumps({"started": began, "counts": total}).encode()

        self._gallery.blobs.update(NAME, added, kind=NAME)

    def times(self) -> dict[str, ArmTimes]:
        """Of all processes, with what this one has not written yet."""
        with self._lock:
            mine = Counter(self._counts)
        return arm_times(self._gallery, unwritten=mine)


def arm_times(gallery: Gallery, *, unwritten: Counter[str] | None = None) -> dict[str, ArmTimes]:
    """Of the searches since this upgrade began; empty if nobody counts."""
    record, total = Record.of(gallery.state), Counter(unwritten or {})
    if record is None:
        return {}
    if gallery.blobs.of_kind(NAME):
        kept = json.loads(gallery.blobs.get(NAME))
        if kept["started"] == record.started:
            total.update(kept["counts"])
    found = {arm: _times(total, arm) for arm in ARMS}
    return {arm: times for arm, times in found.items() if times is not None}


def _bucket(arm: Arm, seconds: float) -> str:
    return f"{arm} {int(math.log(max(seconds, SHORTEST) / SHORTEST) / STEP)}"


def _times(counts: Counter[str], arm: Arm) -> ArmTimes | None:
    mine = sorted(
        (int(name.split()[1]), count) for name, count in counts.items() if name.startswith(arm)
    )
    searches = sum(count for _, count in mine)
    if not searches:
        return None

    def percentile(share: float) -> float:
        seen = np.cumsum([count for _, count in mine])
        bucket = mine[int(np.searchsorted(seen, share * searches))][0]
        return round(1000 * SHORTEST * math.exp((bucket + 0.5) * STEP), 3)

    return ArmTimes(searches, percentile(0.5), percentile(0.99))
