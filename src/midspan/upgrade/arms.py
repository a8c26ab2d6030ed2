"""Live searches by the way that answered, as before or the new one: counts, times, differences.

Each process counts in buckets of time and adds them to the catalogue now and then, so that every
process and every command sees the searches of all. A new upgrade begins from nothing.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from midspan.errors import MidspanError
from midspan.gallery import Gallery
from midspan.gallery.records import Record
from midspan.gallery.routing import Arm

NAME = "search times"  # of the blob
EVERY = 10.0  # seconds between two writes
SHORTEST = 1e-5  # seconds: the floor of the first bucket
STEP = math.log(1.1)  # a bucket is a tenth wider than the one before: times are exact to 5 %
ARMS: tuple[Arm, ...] = ("old", "new")
SHADOW = "shadow"  # times of the new way for queries that the old way answered
PARTS = 1000  # an overlap is counted in so many parts

log = logging.getLogger("midspan.upgrade")


@dataclass(frozen=True, slots=True)
class ArmTimes:
    """old: as before the upgrade. new: the new way."""

    searches: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Queries that were answered as before and asked of the new way too, without being answered."""

    queries: int
    overlap: float  # mean share of the old way's hits that the new way finds too
    first_changed: float  # share of the queries whose first hit is another one
    p50_ms: float  # of the new way
    p99_ms: float
    dropped: int  # queries that were not compared, as others were waiting


class ArmLog:
    """Of one process."""

    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._written = time.monotonic()

    def note(self, arm: Arm, seconds: float) -> None:
        """Written in the background when it is time."""
        self._add({_bucket(arm, seconds): 1})

    def compare(self, before: Sequence[str], after: Sequence[str], seconds: float) -> None:
        """The ids that the old way answered with, and those that the new way would have."""
        shared = len(set(before) & set(after)) / len(before) if before else float(not after)
        changed = list(before[:1]) != list(after[:1])
        counts = {_bucket(SHADOW, seconds): 1, "overlap": round(PARTS * shared)}
        self._add({**counts, "changed": int(changed)})

    def drop(self) -> None:
        """A query that was not compared."""
        self._add({"dropped": 1})

    def _add(self, counts: dict[str, int]) -> None:
        with self._lock:
            self._counts.update(counts)
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
        return arm_times(self._gallery, unwritten=self._unwritten())

    def compared(self) -> Compared | None:
        """Of all processes, with what this one has not written yet."""
        return compared(self._gallery, unwritten=self._unwritten())

    def _unwritten(self) -> Counter[str]:
        with self._lock:
            return Counter(self._counts)


def compared(gallery: Gallery, *, unwritten: Counter[str] | None = None) -> Compared | None:
    """Since this upgrade began; None if nothing was."""
    total = _total(gallery, unwritten)
    times = _times(total, SHADOW)
    if times is None:
        return None
    count = times.searches
    return Compared(
        queries=count,
        overlap=total["overlap"] / PARTS / count,
        first_changed=total["changed"] / count,
        p50_ms=times.p50_ms,
        p99_ms=times.p99_ms,
        dropped=total["dropped"],
    )


def _total(gallery: Gallery, unwritten: Counter[str] | None) -> Counter[str]:
    record, total = Record.of(gallery.state), Counter(unwritten or {})
    if record is None:
        return Counter()
    if gallery.blobs.of_kind(NAME):
        kept = json.loads(gallery.blobs.get(NAME))
        if kept["started"] == record.started:
            total.update(kept["counts"])
    return total


def arm_times(gallery: Gallery, *, unwritten: Counter[str] | None = None) -> dict[str, ArmTimes]:
    """Of the searches since this upgrade began; empty if nobody counts."""
    total = _total(gallery, unwritten)
    all_times = {arm: _times(total, arm) for arm in ARMS}
    return {arm: times for arm, times in all_times.items() if times is not None}


def _bucket(arm: str, seconds: float) -> str:
    return f"{arm} {int(math.log(max(seconds, SHORTEST) / SHORTEST) / STEP)}"


def _times(counts: Counter[str], arm: str) -> ArmTimes | None:
    mine = sorted(
        (int(name.split()[1]), count)
        for name, count in counts.items()
        if name.startswith(f"{arm} ")
    )
    searches = sum(count for _, count in mine)
    if not searches:
        return None

    def percentile(share: float) -> float:
        seen = np.cumsum([count for _, count in mine])
        bucket = mine[int(np.searchsorted(seen, share * searches))][0]
        return round(1000 * SHORTEST * math.exp((bucket + 0.5) * STEP), 3)

    return ArmTimes(searches, percentile(0.5), percentile(0.99))
