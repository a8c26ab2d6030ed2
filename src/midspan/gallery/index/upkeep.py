"""The index beside the shelf: made when a family is large, kept up to date, in the background.

FLAT_UP_TO: up to so many vectors comparing all of them is as fast as an index, and exact.
RECALL: the number of lists to look into is the smallest that finds this share of the true ten
nearest neighbours of a sample of stored vectors, which the lists were not learnt from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from midspan.gallery.index.clusters import Stopped, k_means
from midspan.gallery.index.exact import Best, scan
from midspan.gallery.index.family import Family
from midspan.gallery.index.ivf import Ivf
from midspan.gallery.index.mirror import Mirror
from midspan.gallery.index.shelf import HOLE
from midspan.spaces import FloatArray, IntArray

FLAT_UP_TO = 50_000
RECALL = 0.97
NEIGHBOURS = 10
SAMPLE = 200  # vectors that play the query when the index is calibrated
PER_LIST = 32  # vectors that a centre is learnt from
ROUNDS = 8
RELEARN = 0.5  # rows written since, as a share of all, that make new centres necessary
FOLD = 512  # fresh rows that make it worthwhile to bring them into the lists
IDLE = 0.25  # seconds after which fewer are brought in too
REMOVED = 0.02  # share of the listed rows that may be dead before they are taken out


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
            if not any(wanted(family) for family in self._mirror.families):
                return
            self._thread = threading.Thread(target=self._loop, name="gallery index", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def run(self) -> None:
        """Do all that is to be done, now."""
        with self._working:
            for family in list(self._mirror.families):
                if wanted(family):
                    build(self._mirror, family, stopped=self._stop.is_set)
                fold(self._mirror, family)

    def _loop(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                self._round()
            except Stopped:
                return
            except Exception as error:  # search goes on without the index; `run` shows the error
                self.failure = error
                return

    def _round(self) -> None:
        with self._working:
            for family in list(self._mirror.families):
                if wanted(family):
                    build(self._mirror, family, stopped=self._stop.is_set)
                if family.fresh.count >= FOLD:
                    fold(self._mirror, family)
        while not self._wake.wait(IDLE) and not self._stop.is_set():
            if not any(f.ivf is not None and f.fresh.count for f in self._mirror.families):
                return
            with self._working:
                for family in list(self._mirror.families):
                    fold(self._mirror, family)


def wanted(family: Family) -> bool:
    """It is large and has no index, or one that was learnt from other vectors."""
    if len(family.shelf) <= FLAT_UP_TO:
        return False
    return family.ivf is None or family.written > RELEARN * len(family.shelf)


def build(mirror: Mirror, family: Family, *, stopped: Callable[[], bool]) -> None:
    with mirror.lock.exclusive:
        family.building = True
        generation = family.generation
        known, removed = family.fresh.count, len(family.removed)  # the new lists will know these
        family.written = 0
        rows = np.flatnonzero(family.shelf.items != HOLE)
    ivf = None
    try:
        ivf = _learn(mirror, family, rows, stopped)
    finally:
        with mirror.lock.exclusive:
            if family.generation == generation:
                family.building = False
                if ivf is not None:
                    family.ivf = ivf
                    family.fresh.forget(known)
                    del family.removed[:removed]


def _learn(mirror: Mirror, family: Family, rows: IntArray, stopped: Callable[[], bool]) -> Ivf:
    rng = np.random.default_rng(len(rows))
    shuffled = rng.permutation(rows)
    lists = int(2 * np.sqrt(len(rows)))
    spare = min(SAMPLE, len(rows) // 4)  # not learnt from
    chosen = np.sort(shuffled[spare : spare + PER_LIST * lists])
    lists = min(lists, len(chosen))
    sample = _copy(mirror, family, chosen)
    centres = k_means(sample, lists, metric=family.metric, rounds=ROUNDS, rng=rng, stopped=stopped)
    ivf = Ivf(centres, metric=family.metric, sample=sample)
    del sample
    for start in range(0, len(rows), 16384):
        if stopped():
            raise Stopped
        part = rows[start : start + 16384]
        vectors = _copy(mirror, family, part)
        ivf.add(part, vectors, ivf.nearest(vectors))
    calibrate(ivf, mirror, family, shuffled[:spare])
    return ivf


def _copy(mirror: Mirror, family: Family, rows: IntArray) -> FloatArray:
    with mirror.lock.shared:
        return family.shelf.take(rows)


def calibrate(ivf: Ivf, mirror: Mirror, family: Family, rows: IntArray) -> None:
    """Set ivf.probes by the recall of the neighbours of these rows, themselves left out."""
    queries = _copy(mirror, family, rows)
    best = Best(len(rows), NEIGHBOURS + 1)
    for first, vectors in family.shelf.parts():
        with mirror.lock.shared:
            places = np.arange(first, first + len(vectors))
            counts = family.shelf.items[first : first + len(vectors)] != HOLE
            scan(best, queries, [(places, vectors, counts)], metric=family.metric)
    truth = [
        set(found.tolist()) - {row}
        for row, found in zip(rows.tolist(), best.sorted()[1], strict=True)
    ]

    def recall(probes: int) -> float:
        _, found = ivf.search(queries, 2 * NEIGHBOURS + 17, probes=probes, allowed=None)
        shares = [
            len(wanted & set(got.tolist())) / max(1, len(wanted))
            for wanted, got in zip(truth, found, strict=True)
        ]
        return float(np.mean(shares))

    low, high = 0, 1
    while high < ivf.lists and recall(high) < RECALL:
        low, high = high, min(2 * high, ivf.lists)
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (low, middle) if recall(middle) >= RECALL else (middle, high)
    ivf.probes = high


def fold(mirror: Mirror, family: Family) -> None:
    """Bring fresh rows into the lists and take dead ones out."""
    ivf = family.ivf
    dead = sum(map(len, family.removed))
    if ivf is None or (not family.fresh.count and dead <= REMOVED * len(ivf)):
        return
    with mirror.lock.shared:
        known, removed = family.fresh.count, len(family.removed)
        rows = np.unique(family.fresh.rows)
        rows = rows[family.shelf.items[rows] != HOLE]
        vectors = family.shelf.take(rows)
        stale = np.unique(np.concatenate([rows, *family.removed]))
    nearest = ivf.nearest(vectors)
    with mirror.lock.exclusive:
        if family.ivf is not ivf:
            return
        ivf.remove(stale)
        ivf.add(rows, vectors, nearest)
        family.fresh.forget(known)
        del family.removed[:removed]
