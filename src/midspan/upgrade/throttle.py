"""How fast the backfill may go: a rate, and a live search that must stay quick."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from midspan.errors import ConfigError
from midspan.gallery import Gallery
from midspan.gallery.stores.sqlite.store import SqliteStore

SHORTEST, LONGEST = 0.01, 2.0  # seconds of rest before a batch while searches are slow
SMALL = 32  # items in a batch while searches are slow
NAP = 0.1  # a longer rest looks round in between


@dataclass(frozen=True, slots=True)
class Latency:
    """`p99` gives the live searches' present latency in seconds (None: none were made)."""

    p99: Callable[[], float | None]
    ceiling: float


def live_latency(gallery: Gallery, *, times: float = 1.5, watch: float = 5.0) -> Latency | None:
    """The ceiling is so many times the p99 that live searches have now, before the work begins.

    Searches of other processes on an embedded gallery count. It watches for some seconds; None if
    nobody searches, or if the gallery is on a server.
    """
    store = gallery.store
    if not isinstance(store, SqliteStore):
        return None
    seen, until = [], time.monotonic() + watch
    while time.monotonic() < until:
        if (p99 := store.live_p99()) is not None:
            seen.append(p99)
        time.sleep(watch / 10)
    if not seen:
        return None
    return Latency(p99=store.live_p99, ceiling=times * sorted(seen)[len(seen) // 2])


class Throttle:
    """Rests before batches. With a slow search the rest doubles, with a quick one it halves."""

    def __init__(self, *, max_rate: float | None = None, latency: Latency | None = None) -> None:
        if max_rate is not None and not max_rate > 0:
            raise ConfigError(f"max_rate = {max_rate}; wanted more than 0 items a second")
        if latency is not None and not latency.ceiling > 0:
            raise ConfigError(f"latency ceiling = {latency.ceiling}; wanted more than 0 seconds")
        self.max_rate = max_rate
        self.latency = latency
        self.rest = 0.0
        self._next = 0.0  # when the rate allows the next batch

    def batch(self, wanted: int) -> int:
        """At a low rate smaller batches, so that the work is even within a second.

        Smaller ones too while searches are slow: a search that comes in the middle of a batch
        meets all of it.
        """
        if self.rest > 0:
            wanted = max(1, min(wanted, SMALL))
        return wanted if self.max_rate is None else max(1, min(wanted, int(self.max_rate)))

    def done(self, count: int) -> None:
        """So many items were taken: what the rate demands before the next ones."""
        if self.max_rate is not None:
            self._next = max(self._next, time.monotonic()) + count / self.max_rate

    @property
    def free(self) -> bool:
        """Nothing is to be waited for; as of the last `wait`."""
        return self.max_rate is None and self.rest == 0.0

    def wait(self, go_on: Callable[[], bool]) -> None:
        """Rest as long as needed; ends early when `go_on` says no."""
        if self.latency is not None:
            p99 = self.latency.p99()
            if p99 is not None and p99 > self.latency.ceiling:
                self.rest = min(max(2 * self.rest, SHORTEST), LONGEST)
            else:
                self.rest = self.rest / 2 if self.rest > SHORTEST else 0.0
        until = max(time.monotonic() + self.rest, self._next)
        while (left := until - time.monotonic()) > 0 and go_on():
            time.sleep(min(left, NAP))
