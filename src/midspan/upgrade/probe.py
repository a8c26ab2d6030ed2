"""Searches now and then beside a backfill, to know how long live searches take meanwhile."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np

from midspan.errors import MidspanError
from midspan.gallery import Gallery, Item

EVERY = 0.05  # seconds between two searches
LAST = 100  # searches that count
ITEMS = 100  # that are asked for, in turn


class Probe:
    """For `Latency(probe.p99, ceiling)`, where the backfill runs apart from the service.

    It asks for items like a stored one, so it needs no encoder and sees what a client would see:
    the machine, the disk and the database under the load of the backfill.
    """

    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._items: Sequence[Item] = ()
        self._seconds: deque[float] = deque(maxlen=LAST)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="search probe", daemon=True)

    def __enter__(self) -> Self:
        self._items = self._gallery.store.scan(filter=None, missing=None, after="", limit=ITEMS)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def p99(self) -> float | None:
        """Seconds, of the last searches; None before the first."""
        seconds = list(self._seconds)
        return float(np.percentile(seconds, 99)) if seconds else None

    def _run(self) -> None:
        while self._items:
            for item in self._items:
                if self._stop.wait(EVERY):
                    return
                started = time.perf_counter()
                try:
                    self._gallery.more_like(item.id)
                except MidspanError:
                    continue  # deleted, or the state changed: the backfill meets that itself
                self._seconds.append(time.perf_counter() - started)
