"""The embedded engine at size: writing, building, opening, searching, an upgrade, a rollback.

    OMP_NUM_THREADS=2 python benchmarks/embedded_engine.py --items 1000000 --dim 128

Synthetic vectors with a falling spectrum around `items / 50` centres; `--noise` says how far from
them. The new space is the old one with `--drift` of noise, as a compatible encoder makes it.
Vectors go to the engine in the catalogue's transactions; what the gallery adds to a search (items
by row) is measured by benchmarks/gallery_engine.py. Appends to results/embedded_engine.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from midspan.gallery import Gallery
from midspan.gallery.catalogue.catalogue import Catalogue
from midspan.gallery.engines.base import SearchRequest
from midspan.gallery.engines.embedded.engine import EmbeddedEngine
from midspan.gallery.filters import Eq, Filter
from midspan.gallery.location import parse_location
from midspan.spaces import FloatArray, Space

RESULTS = Path(__file__).parent / "results" / "embedded_engine.csv"
BATCH = 50_000  # vectors in a transaction
QUERIES = 500

# A second process: the time from `open` to the first answer, and whose pages it uses.
READER = """
import sys, time, json
from pathlib import Path
import numpy as np
import faiss
from midspan.gallery.catalogue.catalogue import Catalogue
from midspan.gallery.engines.base import SearchRequest
from midspan.gallery.engines.embedded.engine import EmbeddedEngine
from midspan.gallery.location import parse_location
queries = np.load(sys.argv[2])
started = time.perf_counter()
place = parse_location(sys.argv[1])
catalogue = Catalogue.open(place.catalogue, shown=sys.argv[1])
engine = EmbeddedEngine.open(place, catalogue)
engine.search(SearchRequest(queries[:1], 10, (1,), (1,)))
first = time.perf_counter() - started
engine.search(SearchRequest(queries, 10, (1,), (1,)))
lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
pages = dict(line.split(":") for line in lines)
kilobytes = {name: int(value.split()[0]) for name, value in pages.items()}
print(json.dumps({"first": first, "anonymous": kilobytes["Anonymous"], "pss": kilobytes["Pss"],
                  "rss": kilobytes["Rss"]}), flush=True)
sys.stdin.readline()
engine.close()
catalogue.close()
"""


class Bench:
    def __init__(self, *, items: int, dim: int, noise: float, drift: float, quantise: str) -> None:
        self.items, self.dim, self.noise, self.drift = items, dim, noise, drift
        self.quantise = quantise
        rng = np.random.default_rng(0)
        self.spectrum = (np.arange(1, dim + 1) ** -0.5).astype(np.float32)
        self.centres = rng.standard_normal((max(1, items // 50), dim), dtype=np.float32)
        self.centres *= self.spectrum
        self.folder = Path(tempfile.mkdtemp(prefix="embedded-engine-"))
        self.path = self.folder / "shop.midspan"
        self.old_queries = self.vectors(QUERIES, seed=10**9)
        self.new_queries = self.drifted(self.old_queries, seed=10**9)
        self.rows: list[tuple[str, float]] = []

    def vectors(self, count: int, *, seed: int) -> FloatArray:
        rng = np.random.default_rng(seed)
        rows = self.centres[rng.integers(0, len(self.centres), count)]
        away = self.noise * rng.standard_normal((count, self.dim), dtype=np.float32)
        rows = rows + away * self.spectrum
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)

    def drifted(self, vectors: FloatArray, *, seed: int) -> FloatArray:
        rng = np.random.default_rng(seed + 1)
        away = self.drift * rng.standard_normal(vectors.shape, dtype=np.float32)
        rows = vectors + away * self.spectrum
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)

    def note(self, name: str, value: float) -> None:
        self.rows.append((name, round(value, 4)))
        print(f"{name:52} {value:12.4f}", flush=True)

    def run(self) -> None:
        old = Space(name="old", dim=self.dim, fingerprint="bench-old")
        Gallery.create(self.path, old, quantise=self.quantise).close()
        place = parse_location(self.path)
        catalogue = Catalogue.open(place.catalogue, shown=str(self.path))
        engine = EmbeddedEngine.open(place, catalogue)
        try:
            self.write(catalogue, engine)
            started = time.perf_counter()
            engine.build_index(1)
            self.note("index built s", time.perf_counter() - started)
            self.readers()
            before = self.measure(engine, "before", (1,), self.old_queries)
            self.filters(engine)
            self.upgrade(engine, before)
        finally:
            engine.close()
            catalogue.close()

    def write(self, catalogue: Catalogue, engine: EmbeddedEngine) -> None:
        spent = 0.0
        for first in range(0, self.items, BATCH):
            vectors = self.vectors(min(BATCH, self.items - first), seed=first)
            begun = time.perf_counter()
            with catalogue.database.writing() as connection:
                rows = np.arange(first, first + len(vectors))
                engine.put(1, rows, vectors, connection=connection)
            spent += time.perf_counter() - begun
        self.note("put rows/s", self.items / spent)
        raw = sqlite3.connect(self.path)
        raw.executemany(
            'INSERT INTO items ("row", id, payload, revision, created, changed, sequence) '
            "VALUES (?, ?, ?, 1, 0, 0, 1)",
            (
                (n, f"i{n}", json.dumps({"tenth": n % 10, "rare": n % 9973}))
                for n in range(self.items)
            ),
        )
        raw.execute("UPDATE gallery SET sequence = sequence + 1")
        raw.commit()
        raw.close()

    def readers(self) -> None:
        """Two processes, the second while the first has it open."""
        np.save(self.folder / "queries.npy", self.old_queries)
        command = [sys.executable, "-c", READER, str(self.path), str(self.folder / "queries.npy")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes, answers = [], []
        for _ in range(2):
            process = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
            processes.append(process)
            answers.append(json.loads(process.stdout.readline()))
        for process in processes:
            process.communicate("\n")
        self.note("opened, first search s", answers[0]["first"])
        self.note("opened by a second process, first search s", answers[1]["first"])
        self.note("its own (anonymous) memory MiB", answers[1]["anonymous"] / 1024)
        self.note("its share of all pages MiB", answers[1]["pss"] / 1024)
        self.note("all pages that it uses MiB", answers[1]["rss"] / 1024)

    def filters(self, engine: EmbeddedEngine) -> None:
        for name, filter in (("a tenth", Eq("tenth", 3)), ("1 in 9973", Eq("rare", 3))):
            started = time.perf_counter()
            self.ask(engine, self.old_queries[:1], (1,), filter)
            self.note(f"filter that {name} passes, first search s", time.perf_counter() - started)
            self.measure(engine, f"filter that {name} passes", (1,), self.old_queries[:100], filter)

    def upgrade(self, engine: EmbeddedEngine, before: float) -> None:
        engine.create_space(
            2,
            Space(
                name="new", dim=self.dim, fingerprint="bench-new", compatible_with=("bench-old",)
            ),
        )
        self.measure(engine, "at 0 %, new queries", (2, 1), self.new_queries)
        order = np.random.default_rng(5).permutation(self.items)
        done, spent, building = 0, 0.0, 0.0
        for share in (0.5, 0.9, 1.0):
            end = int(share * self.items)
            while done < end:
                rows = np.sort(order[done : min(end, done + 5000)])
                vectors = self.drifted(engine.fetch(1, rows)[1], seed=done)
                begun = time.perf_counter()
                engine.put(2, rows, vectors)
                spent += time.perf_counter() - begun
                done += len(rows)
                self.ask(engine, self.new_queries[:1], (2, 1))
                for number in (1, 2):
                    if engine.needs_index(number):
                        begun = time.perf_counter()
                        engine.build_index(number)
                        building += time.perf_counter() - begun
            self.settle(engine)
            label = f"at {share:.0%}"
            self.measure(engine, f"{label}, new queries", (2, 1), self.new_queries)
            mine = self.measure(engine, f"{label}, old client", (1, 2), self.old_queries)
            self.note(f"{label}, old client / before", mine / before)
        self.note("backfill put rows/s", self.items / spent)
        self.note("indexes built meanwhile s", building)
        started = time.perf_counter()
        self.ask(engine, self.old_queries[:1], (1,))
        self.note("first search after a rollback ms", (time.perf_counter() - started) * 1e3)
        after = self.measure(engine, "after a rollback", (1,), self.old_queries)
        self.note("after a rollback / before", after / before)

    def settle(self, engine: EmbeddedEngine) -> None:
        """What the engine's thread does after writes is done."""
        for live in ((2, 1), (1, 2)):
            self.ask(engine, self.new_queries[:1], live)
        engine._background.submit(lambda: None).result()

    def ask(
        self,
        engine: EmbeddedEngine,
        queries: FloatArray,
        live: tuple[int, ...],
        filter: Filter | None = None,
        *,
        exact: bool = False,
    ) -> list[set[int]]:
        found = engine.search(SearchRequest(queries, 10, live, live, filter, exact))
        return [set(one.rows[:10].tolist()) for one in found]

    def measure(
        self,
        engine: EmbeddedEngine,
        label: str,
        live: tuple[int, ...],
        queries: FloatArray,
        filter: Filter | None = None,
    ) -> float:
        """p50 of single queries in ms."""
        times = []
        for query in queries:
            begun = time.perf_counter()
            self.ask(engine, query[None], live, filter)
            times.append((time.perf_counter() - begun) * 1e3)
        middle = float(np.percentile(times, 50))
        self.note(f"{label}: p50 ms", middle)
        self.note(f"{label}: p99 ms", float(np.percentile(times, 99)))
        self.note(f"{label}: fastest ms", min(times))
        some = queries[:200]
        pairs = zip(
            self.ask(engine, some, live, filter),
            self.ask(engine, some, live, filter, exact=True),
            strict=True,
        )
        shares = [len(rough & exact) / max(1, len(exact)) for rough, exact in pairs]
        self.note(f"{label}: recall@10", float(np.mean(shares)))
        return middle

    def save(self) -> None:
        RESULTS.parent.mkdir(exist_ok=True)
        new = not RESULTS.exists()
        with RESULTS.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if new:
                head = "date items dim noise drift quantise what value load machine"
                writer.writerow(head.split())
            date, load = time.strftime("%Y-%m-%d"), round(os.getloadavg()[0], 1)
            machine = f"{platform.machine()} {os.cpu_count()} cores"
            setting = (self.items, self.dim, self.noise, self.drift, self.quantise)
            for what, value in self.rows:
                writer.writerow([date, *setting, what, value, load, machine])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--noise", type=float, default=0.7)
    parser.add_argument("--drift", type=float, default=0.1)
    parser.add_argument("--quantise", default="none")
    settings = parser.parse_args()
    bench = Bench(**vars(settings))
    try:
        bench.run()
        bench.save()
    finally:
        shutil.rmtree(bench.folder)


if __name__ == "__main__":
    main()
