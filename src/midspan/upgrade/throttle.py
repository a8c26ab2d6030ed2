"""How fast the backfill may go: a rate, and a live search that must stay quick."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from midspan.errors import ConfigError, MidspanError
from midspan.gallery import Gallery

SHORTEST, LONGEST = 0.01, 2.0  # seconds of rest before a batch while searches are slow
SMALL = 32  # items in a batch while searches are slow
NAP = 0.1  # a longer rest looks round in between


@dataclass(frozen=True, slots=True)
class Latency:
    """The backfill rests while live searches are slower than a ceiling.

    Args:
        p99: Gives the live searches' present latency in seconds (None: none were made).
        ceiling: In seconds.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.upgrade import Latency
        >>> old = ms.Embeddings(np.array(["a", "b", "c"]), np.eye(3), ms.Space("old", 3))
        >>> new = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("new", 2))
        >>> gallery = ms.Gallery.create("memory:", old.space)
        >>> _ = gallery.add(old)
        >>> upgrade = ms.Upgrade.start(gallery, to=new, mode="both")
        >>> p99 = lambda: 0.004  # what your monitoring says, in seconds
        >>> upgrade.run(new, latency=Latency(p99, ceiling=0.05)).written
        2
    """

    p99: Callable[[], float | None]
    ceiling: float


def live_latency(gallery: Gallery, *, times: float = 1.5, watch: float = 5.0) -> Latency | None:
    """The ceiling is so many times the p99 that live searches have now, before the work begins.

    Searches of other processes on an embedded gallery count. It watches for some seconds; None if
    nobody searches, or if the gallery is on a server.
    """
    seen, until = [], time.monotonic() + watch
    while time.monotonic() < until:
        if (p99 := gallery.live_p99()) is not None:
            seen.append(p99)
        time.sleep(watch / 10)
    if not seen:
        return None
    return Latency(p99=gallery.live_p99, ceiling=times * sorted(seen)[len(seen) // 2])


class Throttle:
    """Rests before batches. With a slow search the rest doubles, with a quick one it halves."""

    def __init__(self, *, max_rate: float | None = None, latency: Latency | None = None) -> None:
        if max_rate is not None and not max_rate > 0:
            raise ConfigError(f"expected max_rate above 0 items a second, got {max_rate}")
        if latency is not None and not latency.ceiling > 0:
            raise ConfigError(f"expected a latency ceiling above 0 seconds, got {latency.ceiling}")
        self.max_rate = max_rate
        self.latency = latency
        self.rest = 0.0
        self._next = 0.0  # when the rate allows the next batch

    def batch(self, count: int) -> int:
        """At a low rate smaller batches, so that the work is even within a second.

        Smaller ones too while searches are slow: a search that comes in the middle of a batch
        meets all of it.
        """
        if self.rest > 0:
            count = max(1, min(count, SMALL))
        return count if self.max_rate is None else max(1, min(count, int(self.max_rate)))

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


# ---- searches now and then during a backfill, to know how long live searches take meanwhile ------
# Searchers of a gallery in a file say how long their searches take. Those of a gallery on a server
# do not, so a backfill asks for itself, through the one search that everybody uses.

EVERY = 0.05  # seconds between two searches
LAST = 100  # searches that count
ITEMS = 100  # that are asked for, in turn


@contextmanager
def watch_searches(
    gallery: Gallery, *, times: float = 1.5, watch: float = 1.0
) -> Iterator[Latency | None]:
    """The ceiling is so many times the p99 that searches have now, before the work begins.

    Known from other processes' searches if the gallery's catalogue is a file (None: nobody
    searches), else from a probe, which continues as long as the block.
    """
    if gallery.shares_latency:
        yield live_latency(gallery, times=times, watch=watch)
        return
    probe = Probe(gallery)
    with probe.running():
        until = time.monotonic() + watch
        while time.monotonic() < until and len(gallery):
            time.sleep(min(EVERY, watch / 10))
        now = probe.p99()
        yield None if now is None else Latency(probe.p99, ceiling=times * now)


class Probe:
    """For `Latency(probe.p99, ceiling)`, where the backfill runs apart from the service.

    It asks for items like a stored one, so it needs no encoder and sees what a client would see:
    the machine, the disk and the database under the load of the backfill.
    """

    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._items = cycle(gallery.scan(limit=ITEMS))
        self._seconds: deque[float] = deque(maxlen=LAST)

    def running(self) -> AbstractContextManager[None]:
        return periodically(self._search, every=EVERY, name="search probe")

    def p99(self) -> float | None:
        """Seconds, of the last searches; None before the first."""
        seconds = list(self._seconds)
        return float(np.percentile(seconds, 99)) if seconds else None

    def _search(self) -> None:
        if (item := next(self._items, None)) is None:
            return
        started = time.perf_counter()
        with suppress(MidspanError):  # deleted, or the state changed: the backfill meets that too
            self._gallery.more_like(item.id)
            self._seconds.append(time.perf_counter() - started)


# ---- a function that is called again and again, in a thread, for as long as a block runs ---------


@contextmanager
def periodically(step: Callable[[], None], *, every: float, name: str) -> Iterator[None]:
    """`step` handles its own errors. The thread has ended when the block is left."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(every):
            step()

    thread = threading.Thread(target=loop, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
