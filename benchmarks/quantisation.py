"""Smaller vectors in memory: what they save, what they cost, and what they find.

    python -m benchmarks.quantisation --items 100000 --folder DIR

For none, int8 and binary, each in a process of its own: a gallery of old vectors, then a direct
upgrade of it, tenth by tenth, written by another process as a backfill does, the old vectors kept
for a rollback. Recall@10 against comparing everything right after each tenth (at once: the
background may not have looked at it), and before, at half and after the upgrade when all is
settled; there also memory and the time of one query, of a batch, and of one whose true vectors
are on the disk only. Vectors are those of upgrade_world.py. The first gallery is made in --folder
and found there again. Writes benchmarks/results/quantisation.csv.
"""

from __future__ import annotations

import argparse
import dataclasses
import mmap
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from benchmarks.upgrade_world import NEW, OLD, Notes, World, latencies, name

from midspan.gallery import QUANTISE, Entry, Gallery, set_quantise
from midspan.gallery.index.family import Family
from midspan.gallery.index.memory import give_back
from midspan.gallery.index.shelf import Shelf
from midspan.gallery.stores.sqlite.store import SqliteStore
from midspan.spaces import Embeddings, FloatArray, Space

RESULTS = Path(__file__).parent / "results" / "quantisation.csv"
K = 10
ASKED = 300  # queries whose time is taken
JUDGED = 200  # queries for recall
BATCH = 100  # queries in one call
COLD = 30  # queries that find nothing in memory
PROMISED = ">= 0.97"


class Bench:
    def __init__(self, world: World, kind: str, notes: Notes) -> None:
        self.world, self.kind, self.notes = world, kind, notes

    def run(self) -> None:
        path = self.world.copy(self.world.plain())
        spawned = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        with Gallery.open(path) as gallery, spawned as worker:
            set_quantise(gallery, self.kind)
            idle = anonymous()
            begun = time.perf_counter()
            queries = self.world.queries(OLD, ASKED)
            gallery.search(queries[:1], space=OLD)
            self.note("before", "load and first search s", time.perf_counter() - begun)
            begun = time.perf_counter()
            gallery.store.optimise()
            self.note("before", "index made s", time.perf_counter() - begun)
            self.judge(gallery, "before", OLD, idle)
            start(gallery)
            queries = self.world.queries(NEW, ASKED)
            for state, tenths in (("half", range(5)), ("after", range(5, 10))):
                at_once = []
                for tenth in tenths:
                    worker.submit(fill, self.world.items, path, tenth).result()
                    at_once.append(recall(gallery, queries, NEW))
                self.note(state, "lowest recall@10 at once", min(at_once))
                gallery.store.optimise()
                self.judge(gallery, state, NEW, idle)
        for leftover in path.parent.glob(f"{path.name}*"):
            leftover.unlink()

    def judge(self, gallery: Gallery, state: str, space: Space, idle: float) -> None:
        queries = self.world.queries(space, ASKED)
        family = family_of(gallery)
        index = family.ivf
        assert index is not None, "too few items: every vector is compared"
        give_back()
        self.note(state, "memory MiB", anonymous() - idle)
        self.note(state, "codes B per item", index.row_bytes)
        self.note(state, "candidates for ten", index.candidates(K))
        self.note(state, "lists looked into", index.probes)
        self.note(state, "recall@10 settled", recall(gallery, queries, space), PROMISED)

        def one(query: int) -> object:
            return gallery.search(queries[query], space=space)

        for number in range(50):
            one(number)
        times = latencies({"one": one}, ASKED)["one"]
        self.note(state, "one query p50 ms", float(np.percentile(times, 50)))
        self.note(state, "one query p99 ms", float(np.percentile(times, 99)))
        begun = time.perf_counter()
        for first in range(0, ASKED, BATCH):
            gallery.search(queries[first : first + BATCH], space=space)
        spent = (time.perf_counter() - begun) * 1e3 / ASKED
        self.note(state, f"query of a batch of {BATCH} ms", spent)
        if self.kind != "none":
            cold = []
            for number in range(COLD):
                evict(family.shelf)
                begun = time.perf_counter()
                one(number)
                cold.append((time.perf_counter() - begun) * 1e3)
            self.note(state, "one query, vectors on disk only p50 ms", float(np.median(cold)))

    def note(self, state: str, what: str, value: float, wanted: str = "") -> None:
        self.notes(self.kind, f"{state}: {what}", value, wanted)


def fill(items: int, path: Path, tenth: int) -> None:
    """New vectors for one item in ten, all over the gallery."""
    world = World(items, path.parent)
    with Gallery.open(path) as gallery:
        for first, count in world.blocks():
            rows = world.vectors(NEW, first, count)[tenth::10]
            ids = np.array([name(number) for number in range(first + tenth, first + count, 10)])
            for start in range(0, len(ids), 2000):
                part = slice(start, start + 2000)
                vectors = Embeddings(ids[part], rows[part], NEW)
                gallery.store.fill(vectors, revisions=[1] * len(vectors))


def start(gallery: Gallery) -> None:
    """What the start of a direct upgrade does to the state."""
    state = gallery.state
    gallery.store.change(
        dataclasses.replace(
            state,
            spaces={**state.spaces, NEW.fingerprint: NEW},
            live=(NEW.fingerprint, OLD.fingerprint),
            target=NEW.fingerprint,
        ),
        entry=Entry(who="benchmark", what="start"),
    )


def family_of(gallery: Gallery) -> Family:
    assert isinstance(gallery.store, SqliteStore)
    return gallery.store._follower._mirror.families[0]


def recall(gallery: Gallery, queries: FloatArray, space: Space) -> float:
    found, true = (
        gallery.search(queries[:JUDGED], k=K, space=space, exact=exact) for exact in (False, True)
    )
    shares = [
        len({hit.id for hit in mine} & {hit.id for hit in theirs}) / K
        for mine, theirs in zip(found, true, strict=True)
    ]
    return float(np.mean(shares))


def evict(shelf: Shelf) -> None:
    """Out of this process's memory and out of the system's: what is asked for next is read."""
    for file in shelf._files:
        assert file is not None
        file._map.madvise(mmap.MADV_DONTNEED)
        os.fsync(file._file)  # only clean pages can be dropped
        os.posix_fadvise(file._file, 0, 0, os.POSIX_FADV_DONTNEED)


def anonymous() -> float:
    """MiB that the system cannot take back; pages of mapped files are not among them."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where galleries are made and kept")
    parser.add_argument("--kind", action="append", choices=list(QUANTISE), help="all by default")
    settings = parser.parse_args()
    kinds = settings.kind or list(QUANTISE)
    folder = settings.folder or Path(tempfile.mkdtemp(prefix="quantisation-"))
    folder.mkdir(parents=True, exist_ok=True)
    world = World(settings.items, folder)
    if len(kinds) > 1:  # a process for each: what one used does not stand in the other's numbers
        world.plain()
        for kind in kinds:
            words = ["--items", str(settings.items), "--folder", str(folder), "--kind", kind]
            subprocess.run([sys.executable, "-m", "benchmarks.quantisation", *words], check=True)
        return
    notes = Notes(settings.items)
    Bench(world, kinds[0], notes).run()
    notes.save(kinds, RESULTS)


if __name__ == "__main__":
    main()
