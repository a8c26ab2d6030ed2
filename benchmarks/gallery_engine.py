"""The embedded store at size: adding, loading, searching, an upgrade to 100 %, a rollback.

    OMP_NUM_THREADS=2 python benchmarks/gallery_engine.py --items 1000000

Synthetic unit vectors in 128 dimensions around `items / 100` centres; `--noise` says how far from
them (1.6 is so far that clusters hardly exist, the worst case for any index). The new space is the
old one with a little noise, as a compatible encoder makes it. One process does it all, with a
second handle on the file for the backfill. Appends to benchmarks/results/gallery_engine.csv.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import platform
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np

from midspan.gallery import Entry, Gallery
from midspan.spaces import Embeddings, FloatArray, Space

RESULTS = Path(__file__).parent / "results" / "gallery_engine.csv"
DIM = 128
OLD = Space(name="old", dim=DIM, fingerprint="bench-old")
NEW = Space(name="new", dim=DIM, fingerprint="bench-new", compatible_with=("bench-old",))
BATCH = 1000


class Bench:
    def __init__(self, items: int, noise: float) -> None:
        self.items, self.noise = items, noise
        rng = np.random.default_rng(0)
        self.centres = rng.standard_normal((max(1, items // 100), DIM), dtype=np.float32)
        self.queries = self.vectors(500, seed=10**9)
        self.folder = Path(tempfile.mkdtemp(prefix="gallery-engine-"))
        self.rows: list[tuple[str, float]] = []

    def vectors(self, count: int, *, seed: int) -> FloatArray:
        rng = np.random.default_rng(seed)
        rows = self.centres[rng.integers(0, len(self.centres), count)]
        rows = rows + self.noise * rng.standard_normal((count, DIM), dtype=np.float32)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)

    def note(self, name: str, value: float) -> None:
        self.rows.append((name, round(value, 4)))
        print(f"{name:46} {value:12.3f}", flush=True)

    # ---- the life of a gallery

    def run(self) -> None:
        location = self.folder / "shop.midspan"
        with Gallery.create(location, OLD) as gallery:
            self.add(gallery)
        with Gallery.open(location) as gallery, Gallery.open(location) as other:
            started = time.perf_counter()
            gallery.search(self.queries[0], space=OLD)
            self.note("load and first search s", time.perf_counter() - started)
            self.note("memory after load MiB", memory())
            self.latency("every vector compared", lambda q: gallery.search(q, space=OLD), 20)
            started = time.perf_counter()
            gallery.store.optimise()
            self.note("index built s", time.perf_counter() - started)
            self.note("memory with index MiB", memory())
            self.quality("before", gallery, OLD)
            self.filtered(gallery)
            self.upgrade(gallery, other)
            self.rollback(gallery)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            self.note("peak memory MiB", peak)
            self.bare_engine(gallery)

    def add(self, gallery: Gallery) -> None:
        started, spent = time.perf_counter(), 0.0
        for first in range(0, self.items, 50_000):
            count = min(50_000, self.items - first)
            begun = time.perf_counter()
            vectors = self.vectors(count, seed=first)
            spent += time.perf_counter() - begun
            ids = [name(number) for number in range(first, first + count)]
            gallery.add(
                Embeddings(ids=np.array(ids), vectors=vectors, space=OLD),
                uris=[f"images/{id}.jpg" for id in ids],
                payloads=[{"n": number % 10} for number in range(first, first + count)],
            )
        self.note("added items/s", self.items / (time.perf_counter() - started - spent))
        self.note("disk MiB", self.disk())

    def bare_engine(self, gallery: Gallery) -> None:
        """faiss IVF-Flat over the same vectors with as many lists, at the recall of the gallery."""
        wanted = self.recall(gallery, OLD)
        lists = int(2 * np.sqrt(self.items))
        quantiser = faiss.IndexFlatIP(DIM)
        index = faiss.IndexIVFFlat(quantiser, DIM, lists, faiss.METRIC_INNER_PRODUCT)
        index.cp.niter = 8
        parts = range(0, self.items, 50_000)
        sizes = [min(50_000, self.items - first) for first in parts]
        rows = [self.vectors(size, seed=first) for first, size in zip(parts, sizes, strict=True)]
        sample = np.concatenate([part[:: max(1, self.items // (32 * lists))] for part in rows])
        index.train(sample)
        for part in rows:
            index.add(part)
        del rows
        truth = gallery.search(self.queries[:100], space=OLD, exact=True)
        index.nprobe = 1
        while index.nprobe < lists:
            _, found = index.search(self.queries[:100], 10)
            shares = [
                len({hit.id for hit in hits} & {name(row) for row in got.tolist()}) / 10
                for hits, got in zip(truth, found, strict=True)
            ]
            if np.mean(shares) >= wanted:
                break
            index.nprobe = min(lists, index.nprobe + max(1, index.nprobe // 4))
        bare = self.latency("bare faiss IVF-Flat", lambda q: index.search(q[None], 10), 300)
        ours = self.latency("gallery", lambda q: gallery.search(q, space=OLD), 300)
        self.note("gallery / bare faiss", ours / bare)

    def filtered(self, gallery: Gallery) -> None:
        started = time.perf_counter()
        gallery.search(self.queries[0], space=OLD, filter={"n": 3})
        self.note("a filter's first search s", time.perf_counter() - started)
        self.latency(
            "filter that a tenth passes",
            lambda q: gallery.search(q, space=OLD, filter={"n": 3}),
            100,
        )

    def upgrade(self, gallery: Gallery, other: Gallery) -> None:
        single = self.latency("one space", lambda q: gallery.search(q, space=OLD), 300)
        state = gallery.state
        started = time.perf_counter()
        gallery.store.change(
            dataclasses.replace(
                state,
                spaces={**state.spaces, NEW.fingerprint: NEW},
                live=(NEW.fingerprint, OLD.fingerprint),
                target=NEW.fingerprint,
            ),
            entry=Entry(who="benchmark", what="start"),
        )
        self.note("upgrade started s", time.perf_counter() - started)
        for share in (0.1, 0.5, 1.0):
            self.backfill(gallery, other, int(share * self.items), f"to {share:.0%}")
            gallery.store.optimise()
            self.note("memory MiB", memory())
            mixed = self.latency("mixed", lambda q: gallery.search(q, space=NEW), 300)
            self.note("mixed / one space", mixed / single)
            self.quality(f"at {share:.0%}", gallery, NEW)
        self.note("disk MiB", self.disk())

    def backfill(self, gallery: Gallery, other: Gallery, goal: int, label: str) -> None:
        stop, times = threading.Event(), list[float]()

        def search() -> None:
            number = 0
            while not stop.is_set():
                begun = time.perf_counter()
                gallery.search(self.queries[number % 500], space=NEW)
                times.append((time.perf_counter() - begun) * 1e3)
                number += 1
                time.sleep(0.005)

        searcher = threading.Thread(target=search)
        searcher.start()
        done = other.store.count().stored[NEW.fingerprint]
        first, started, spent = done, time.perf_counter(), 0.0
        while done < goal:
            tasks = other.store.claim(worker="benchmark", limit=BATCH, seconds=60)
            begun = time.perf_counter()
            ids = [task.item.id for task in tasks]
            old = other.store.vectors(ids, space=OLD.fingerprint).vectors
            rng = np.random.default_rng(done)
            new = old + 0.05 * rng.standard_normal(old.shape, dtype=np.float32)
            new /= np.linalg.norm(new, axis=1, keepdims=True)
            spent += time.perf_counter() - begun
            filled = Embeddings(ids=np.array(ids), vectors=new, space=NEW)
            done += other.store.fill(filled, revisions=[task.item.revision for task in tasks])
        self.note(
            f"backfill {label}, unthrottled, rows/s",
            (done - first) / (time.perf_counter() - started - spent),
        )
        stop.set()
        searcher.join()
        self.note("search meanwhile p50 ms", float(np.percentile(times, 50)))
        self.note("search meanwhile p99 ms", float(np.percentile(times, 99)))

    def rollback(self, gallery: Gallery) -> None:
        state = gallery.state
        started = time.perf_counter()
        gallery.store.change(
            dataclasses.replace(state, live=(OLD.fingerprint,), target=None),
            entry=Entry(who="benchmark", what="rollback"),
        )
        hits = gallery.search(self.queries[0], space=OLD)[0]
        self.note("rollback to the first right answer s", time.perf_counter() - started)
        assert {hit.space.name for hit in hits} == {"old"}
        started = time.perf_counter()
        gallery.store.optimise()
        self.note("index built again s", time.perf_counter() - started)
        self.quality("after rollback", gallery, OLD)

    # ---- measures

    def recall(self, gallery: Gallery, space: Space) -> float:
        rough = gallery.search(self.queries[:100], space=space)
        exact = gallery.search(self.queries[:100], space=space, exact=True)
        shares = [
            len({hit.id for hit in one} & {hit.id for hit in other}) / 10
            for one, other in zip(rough, exact, strict=True)
        ]
        return float(np.mean(shares))

    def quality(self, label: str, gallery: Gallery, space: Space) -> None:
        self.note(f"recall@10 {label}", self.recall(gallery, space))

    def latency(self, label: str, search: Callable[[FloatArray], object], count: int) -> float:
        times = []
        for query in self.queries[:count]:
            begun = time.perf_counter()
            search(query)
            times.append((time.perf_counter() - begun) * 1e3)
        middle = float(np.percentile(times, 50))
        self.note(f"{label} p50 ms", middle)
        self.note(f"{label} p99 ms", float(np.percentile(times, 99)))
        return middle

    def disk(self) -> float:
        return sum(file.stat().st_size for file in self.folder.iterdir()) / 2**20

    def save(self) -> None:
        RESULTS.parent.mkdir(exist_ok=True)
        new = not RESULTS.exists()
        with RESULTS.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(["date", "items", "noise", "what", "value", "load", "machine"])
            date = time.strftime("%Y-%m-%d")
            machine = f"{platform.machine()} {os.cpu_count()} cores"
            load = round(os.getloadavg()[0], 1)
            for what, value in self.rows:
                writer.writerow([date, self.items, self.noise, what, value, load, machine])


def name(number: int) -> str:
    return f"item-{number:08}"


def memory() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--noise", type=float, default=1.0)
    settings = parser.parse_args()
    bench = Bench(settings.items, settings.noise)
    try:
        bench.run()
        bench.save()
    finally:
        shutil.rmtree(bench.folder)


if __name__ == "__main__":
    main()
