"""The index beside the shelf: made when a family is large, kept up to date, in the background.

FLAT_UP_TO: with so many numbers or fewer (50,000 vectors of 128 dimensions) a search that compares
every vector takes 1.5 ms of one core here, and is exact; an index took 0.1 to 0.7 ms. Codes of any
size begin above it too.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

import numpy as np

from midspan.gallery.index.calibrate import calibrate, judges, unjudged
from midspan.gallery.index.clusters import k_means
from midspan.gallery.index.codes import CODES
from midspan.gallery.index.family import Family
from midspan.gallery.index.ivf import Ivf
from midspan.gallery.index.memory import give_back
from midspan.gallery.index.mirror import Mirror
from midspan.gallery.index.shelf import HOLE
from midspan.spaces import FloatArray, IntArray

FLAT_UP_TO = 6_400_000
PER_LIST = 32  # vectors that a centre is learnt from
ROUNDS = 8
RELEARN = 0.3  # rows written since, as a share of all, that make new centres necessary
RECALIBRATE = 0.1  # and that make a new look at the recall necessary
FOLD = 512  # fresh rows that make it worthwhile to bring them into the lists
SETTLE = 0.5  # seconds that a search which saw the change has before the work begins
IDLE = 0.25  # seconds after which fewer are brought in too
LAST = 2048  # rows that may be fresh when a new index takes over
BEHIND = 0.02  # share of the listed rows that may be dead or old before they are taken out


class Stopped(Exception):
    """The gallery was closed in the middle of it."""


class Upkeep:
    """One thread for one mirror; `wake` it after changes."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._working = threading.Lock()  # one at a time, be it the thread or `run`
        self._thread: threading.Thread | None = None
        self.failure: Exception | None = None

    def wake(self) -> None:
        if self._thread is None:
            idle = not any(wanted(family) for family in self._mirror.families)
            if idle and not self._mirror.misplaced():
                return
            self._thread = threading.Thread(target=self._loop, name="gallery index", daemon=True)
            self._thread.start()
            atexit.register(self.stop)  # a gallery that nobody closed
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            atexit.unregister(self.stop)

    def run(self) -> None:
        """Do all that is to be done, now."""
        with self._working:
            self._settle()
            for family in list(self._mirror.families):
                self._keep_up(family)
                fold(self._mirror, family)

    def _loop(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            self._stop.wait(SETTLE)
            try:
                self._round()
            except Stopped:
                return
            except Exception as error:  # search goes on without the index; `run` shows the error
                self.failure = error
                return

    def _round(self) -> None:
        with self._working:
            self._settle()
            for family in list(self._mirror.families):
                self._keep_up(family)
        while not self._wake.wait(IDLE) and not self._stop.is_set():
            if not any(f.ivf is not None and f.fresh.count for f in self._mirror.families):
                return
            with self._working:
                for family in list(self._mirror.families):
                    fold(self._mirror, family)

    def _settle(self) -> None:
        """Vectors to where the layout wants them, after it changed."""
        with self._mirror.lock.shared:
            shelves = self._mirror.misplaced()
        for shelf in shelves:
            shelf.move(self._mirror.layout.place, lock=self._mirror.lock)
            give_back()

    def _keep_up(self, family: Family) -> None:
        if family.fresh.count >= FOLD:
            fold(self._mirror, family)
        if wanted(family):
            self._build(family)
        elif family.ivf is not None and self._to_be_judged(family):
            with self._mirror.lock.shared:
                rows = np.flatnonzero(family.shelf.items != HOLE)
                rows = judges(family, np.random.default_rng(len(rows)).permutation(rows))
            family.uncalibrated = 0
            calibrate(family.ivf, self._mirror, family, rows)

    def _to_be_judged(self, family: Family) -> bool:
        with self._mirror.lock.shared:
            return family.uncalibrated > RECALIBRATE * len(family.shelf) or unjudged(family)

    def _build(self, family: Family) -> None:
        def breathe() -> None:
            if self._stop.is_set():
                raise Stopped
            if family.fresh.count >= FOLD:  # the present index stays up to date meanwhile
                fold(self._mirror, family)

        build(self._mirror, family, breathe=breathe)
        give_back()


def wanted(family: Family) -> bool:
    """It is large and has no index, one of other codes, or one learnt from other vectors."""
    if len(family.shelf) * family.dim <= FLAT_UP_TO:
        return False
    if family.ivf is None or not isinstance(family.ivf.codes, CODES[family.layout.quantise]):
        return True
    return family.unlearnt > RELEARN * len(family.shelf)


def build(mirror: Mirror, family: Family, *, breathe: Callable[[], None]) -> None:
    """A new index, made beside the present one; searches and writes go on meanwhile."""
    missed: list[IntArray] = []
    with mirror.lock.exclusive:
        family.missed = missed
        family.unlearnt = family.uncalibrated = 0
        rows = np.flatnonzero(family.shelf.items != HOLE)
    try:
        ivf = _learn(mirror, family, rows, breathe)
        while family.missed is missed:
            breathe()
            with mirror.lock.exclusive:
                changed = np.unique(np.concatenate([*missed, np.empty(0, dtype=np.int64)]))
                missed.clear()
                if len(changed) <= LAST and family.missed is missed:
                    _swap(family, ivf, changed)
                    return
                alive, vectors = _alive(family, changed)
            ivf.remove(changed)
            ivf.add(alive, vectors, ivf.nearest(vectors))
    finally:
        with mirror.lock.exclusive:
            if family.missed is missed:
                family.missed = None


def _swap(family: Family, ivf: Ivf, changed: IntArray) -> None:
    """The last rows that changed are fresh for the new index."""
    family.put_index(ivf)
    family.missed = None
    alive, vectors = _alive(family, changed)
    family.fresh.add(alive, vectors)
    family.behind.append(changed)


def _alive(family: Family, rows: IntArray) -> tuple[IntArray, FloatArray]:
    rows = rows[family.shelf.items[rows] != HOLE]
    return rows, family.shelf.take(rows)


def _learn(mirror: Mirror, family: Family, rows: IntArray, breathe: Callable[[], None]) -> Ivf:
    rng = np.random.default_rng(len(rows))
    shuffled = rng.permutation(rows)
    lists = int(2 * np.sqrt(len(rows)))
    with mirror.lock.shared:
        spare = judges(family, shuffled)  # not learnt from
    chosen = np.sort(shuffled[~np.isin(shuffled, spare)][: PER_LIST * lists])
    lists = min(lists, len(chosen))
    sample = _copy(mirror, family, chosen)
    centres = k_means(sample, lists, metric=family.metric, rounds=ROUNDS, rng=rng, breathe=breathe)
    codes = CODES[family.layout.quantise](family.dim)
    ivf = Ivf(centres, metric=family.metric, sample=sample, codes=codes)
    del sample
    for start in range(0, len(rows), 16384):
        breathe()
        part = rows[start : start + 16384]
        vectors = _copy(mirror, family, part)
        ivf.add(part, vectors, ivf.nearest(vectors))
    calibrate(ivf, mirror, family, spare)
    return ivf


def _copy(mirror: Mirror, family: Family, rows: IntArray) -> FloatArray:
    with mirror.lock.shared:
        return family.shelf.take(rows)


def fold(mirror: Mirror, family: Family) -> None:
    """Bring fresh rows into the lists, and now and then take dead and former ones out.

    Taking out looks at every list, and searches wait meanwhile. So a row that was written again
    stands in two lists for a while, which only costs a candidate: scores come from the shelf.
    """
    ivf = family.ivf
    if ivf is None:
        return
    clean = sum(map(len, family.behind)) > BEHIND * len(ivf)
    if not family.fresh.count and not clean:
        return
    with mirror.lock.shared:
        known, behind = family.fresh.count, len(family.behind)
        touched = [family.fresh.rows, *(family.behind if clean else ())]
        stale = np.unique(np.concatenate(touched))
        rows, vectors = _alive(family, stale)
    nearest = ivf.nearest(vectors)
    with mirror.lock.exclusive:
        if family.ivf is not ivf:
            return
        if clean:
            ivf.remove(stale)
            del family.behind[:behind]
        ivf.add(rows, vectors, nearest)
        family.fresh.forget(known)
