"""How long live searches take, told to other processes: `shop.midspan-pulse` beside the gallery.

A backfill in a process of its own must know when it is in the way. While an upgrade has work to do,
whoever searches writes the p99 of its last searches there, once a second; 24 bytes, not a record
of anything, and gone when it is closed.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections import deque
from pathlib import Path

EVERY = 1.0  # seconds between two writes
RECENT = 5.0  # seconds of searches that count, and for which a written value does
FEWEST = 20  # searches that make a p99
_RECORD = struct.Struct("<ddd")  # moment, p99 in seconds, searches


class Pulse:
    def __init__(self, gallery: Path) -> None:
        self._path = Path(f"{gallery}-pulse")
        self._seen: deque[tuple[float, float]] = deque(maxlen=1000)  # moment, seconds
        self._written = 0.0

    def note(self, seconds: float) -> None:
        now = time.time()
        self._seen.append((now, seconds))
        if now - self._written >= EVERY:
            self._written = now
            self._write(now)

    def _write(self, now: float) -> None:
        recent = sorted(took for moment, took in list(self._seen) if moment > now - RECENT)
        if len(recent) < FEWEST:
            return
        p99 = recent[min(len(recent) - 1, int(0.99 * len(recent)))]
        other = self._read()
        if other is not None and now - other[0] < EVERY / 2 and other[1] > p99:
            return  # another searcher has it worse
        with contextlib.suppress(OSError):  # a full disk must not stop a search
            self._path.write_bytes(_RECORD.pack(now, p99, len(recent)))

    def p99(self) -> float | None:
        """Seconds; None if nobody searches."""
        found = self._read()
        return None if found is None or time.time() - found[0] > RECENT else found[1]

    def _read(self) -> tuple[float, float] | None:
        try:
            moment, p99, _ = _RECORD.unpack(self._path.read_bytes())
        except (OSError, struct.error):  # none, or being written in this moment
            return None
        return moment, p99

    def close(self) -> None:
        if self._written:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
