"""What live searches report to other processes: which items they return, and how long they take.

`SearchLog` counts in memory how often each item is returned and adds the counts to the catalogue
now and then: the order `traffic` embeds those items first. `LatencyBeacon` writes the p99 of the
last searches to `shop.midspan-pulse` once a second while an upgrade has work to do, so that a
backfill in another process knows when it is in the way: 24 bytes, removed when it is closed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from midspan.errors import MidspanError
from midspan.gallery.records import Hit

if TYPE_CHECKING:
    from midspan.gallery.gallery import Gallery

NAME = "search log"  # of the blob
KEPT = 100_000  # items, those that are returned most
EVERY = 60.0  # seconds between two writes of the counts
BEACON_SECONDS = 1.0  # between two writes of the latency
RECENT = 5.0  # seconds of searches that count, and for which a written value does
FEWEST = 20  # searches that make a p99
_RECORD = struct.Struct("<ddd")  # moment, p99 in seconds, searches


class SearchLog:
    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._written = time.monotonic()

    def note(self, results: Sequence[Sequence[Hit]]) -> None:
        """Count what was returned; written in the background when it is time."""
        with self._lock:
            self._counts.update(hit.id for hits in results for hit in hits)
            if time.monotonic() - self._written < EVERY:
                return
            self._written = time.monotonic()
        threading.Thread(target=self._flush, name="search log", daemon=True).start()

    def _flush(self) -> None:
        try:
            self.flush()
        except MidspanError as error:
            logging.getLogger(__name__).warning("the search log could not be written: %s", error)

    def flush(self) -> None:
        """Add the counts to those of all processes."""
        with self._lock:
            mine, self._counts = self._counts, Counter()
            self._written = time.monotonic()
        if not mine:
            return

        def added(kept: bytes | None) -> bytes:
            total = Counter[str](json.loads(kept) if kept else {})
            total.update(mine)
            return json.dumps(dict(total.most_common(KEPT)), ensure_ascii=False).encode()

        self._gallery.blobs.update(NAME, added, kind=NAME)


def returned(gallery: Gallery) -> dict[str, int]:
    """Item id → how often it was returned; empty if nobody counts."""
    if not gallery.blobs.of_kind(NAME):
        return {}
    counts: dict[str, int] = json.loads(gallery.blobs.get(NAME))
    return counts


class LatencyBeacon:
    def __init__(self, gallery: Path) -> None:
        self._path = Path(f"{gallery}-pulse")
        self._seen: deque[tuple[float, float]] = deque(maxlen=1000)  # moment, seconds
        self._written = 0.0

    def note(self, seconds: float) -> None:
        now = time.time()
        self._seen.append((now, seconds))
        if now - self._written >= BEACON_SECONDS:
            self._written = now
            self._write(now)

    def _write(self, now: float) -> None:
        recent = sorted(took for moment, took in list(self._seen) if moment > now - RECENT)
        if len(recent) < FEWEST:
            return
        p99 = recent[min(len(recent) - 1, int(0.99 * len(recent)))]
        other = self._read()
        if other is not None and now - other[0] < BEACON_SECONDS / 2 and other[1] > p99:
            return  # another searcher has it worse
        with contextlib.suppress(OSError):  # a full disk must not stop a search
            self._path.write_bytes(_RECORD.pack(now, p99, len(recent)))

    def p99(self) -> float | None:
        """Seconds; None if nobody searches."""
        latest = self._read()
        return None if latest is None or time.time() - latest[0] > RECENT else latest[1]

    def _read(self) -> tuple[float, float] | None:
        try:
            moment, p99, _ = _RECORD.unpack(self._path.read_bytes())
        except (OSError, struct.error):  # none, or being written now
            return None
        return moment, p99

    def close(self) -> None:
        if self._written:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
