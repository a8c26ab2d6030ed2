"""The steps of benchmarks/scaling.py, each run in a process of its own.

    python -m benchmarks.scaling_steps STEP ITEMS FOLDER

A step prints one JSON object: seconds, and whatever else it measured. They are run in the order of
STEPS, on one gallery file in FOLDER.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from benchmarks.upgrade_world import DIM, NEW, OLD, World, memory, name

from midspan.evaluation import evaluate as evaluate_vectors
from midspan.gallery import Gallery, Item
from midspan.gallery.engines.embedded.build import FLAT_UP_TO
from midspan.spaces import Embeddings
from midspan.upgrade import Embed, Embedded, Upgrade

BLOCK = 5000  # items added at once
QUERIES = 200
SEARCHES = 500
SAMPLE = 1000  # items with both vectors, for the plan
ROW = 4 * DIM
CLASSES = 200  # the same at every size: an order's cost grows with them too, up to 2,048

Measured = dict[str, float]


class Clock:
    """Seconds of the clock and of the processor, in all blocks that it was entered for."""

    def __init__(self) -> None:
        self.seconds = self.cpu = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began[0]
        self.cpu += time.process_time() - self._began[1]

    def measured(self, **more: float) -> Measured:
        return {"seconds": self.seconds, "cpu": self.cpu, **more}


class Bench:
    def __init__(self, items: int, folder: Path) -> None:
        self.world = World(items, folder)
        self.items = items
        self.gallery = folder / "scaling.midspan"
        self.vectors = folder / "new.vectors"

    def blocks(self) -> list[tuple[int, int]]:
        """Of the same size at every number of items, as the memory of a step is to be compared."""
        starts = range(0, self.items, BLOCK)
        return [(first, min(BLOCK, self.items - first)) for first in starts]


def add(bench: Bench) -> Measured:
    """A gallery from nothing; blocks of vectors are made outside the time."""
    clock = Clock()
    with Gallery.create(bench.gallery, OLD) as gallery:
        for first, count in bench.blocks():
            rows = bench.world.vectors(OLD, first, count)
            ids = [name(number) for number in range(first, first + count)]
            labels = [str(number % CLASSES) for number in range(first, first + count)]
            with clock:
                gallery.add(
                    Embeddings(np.array(ids), rows, OLD),
                    uris=[f"images/{id}.jpg" for id in ids],
                    payloads=[{"labels": label} for label in labels],
                )
    return clock.measured()


def write_vectors(bench: Bench) -> Measured:
    """No measure: the new vectors as a plain file, as an encoder elsewhere would leave them."""
    with bench.vectors.open("wb") as file:
        for first, count in bench.blocks():
            file.write(bench.world.vectors(NEW, first, count).tobytes())
    return {}


def evaluate(bench: Bench) -> Measured:
    """Exact search and metrics of so many queries on all items."""
    rows = np.concatenate([bench.world.vectors(OLD, *block) for block in bench.blocks()])
    ids = np.array([name(number) for number in range(bench.items)])
    labels = np.arange(bench.items) % CLASSES
    stored = Embeddings(ids, rows, OLD, {"labels": labels})
    asked = np.linspace(0, bench.items - 1, QUERIES).astype(np.int64)
    query = stored[asked]
    with (clock := Clock()):
        evaluate_vectors(query, stored, metrics=["recall@1", "recall@10", "map"])
    return clock.measured()


def open_gallery(bench: Bench) -> Measured:
    """To the first answer."""
    query = bench.world.queries(OLD, 1)
    with (clock := Clock()), Gallery.open(bench.gallery) as gallery:
        gallery.search(query, space=OLD)
    return clock.measured()


def search(bench: Bench) -> Measured:
    """One query at a time, with the index made."""
    queries = bench.world.queries(OLD, SEARCHES)
    with Gallery.open(bench.gallery) as gallery:
        gallery.search(queries[:1], space=OLD)
        with (index := Clock()):
            gallery.optimise()
        times = []
        for query in queries:
            with (clock := Clock()):
                gallery.search(query[None], space=OLD)
            times.append((clock.seconds, clock.cpu))
    seconds, cpu = np.median(np.array(times), axis=0).tolist()
    made = {"index_s": index.seconds, "index_cpu": index.cpu}
    return {"seconds": seconds, "cpu": cpu, **(made if bench.items * DIM > FLAT_UP_TO else {})}


def count(bench: Bench) -> Measured:
    with Gallery.open(bench.gallery) as gallery:
        with (clock := Clock()):
            gallery.count()
        return clock.measured()


def verify(bench: Bench) -> Measured:
    with Gallery.open(bench.gallery) as gallery:
        with (clock := Clock()):
            assert gallery.verify().ok
        return clock.measured()


def plan(bench: Bench) -> Measured:
    """With new vectors of some items, and the evidence from them."""
    numbers = np.arange(SAMPLE)
    sample = Embeddings(
        np.array([name(int(number)) for number in numbers]), rows_of(bench, numbers), NEW
    )
    with Gallery.open(bench.gallery) as gallery, (clock := Clock()):
        made = Upgrade.plan(gallery, to=NEW, sample=sample)
    assert made.curve is not None
    return clock.measured()


def start(bench: Bench) -> Measured:
    """The work is listed, and its order written (uncertainty)."""
    with Gallery.open(bench.gallery) as gallery:
        with (clock := Clock()):
            Upgrade.start(gallery, to=NEW, order="uncertainty")
        return clock.measured()


def backfill(bench: Bench) -> Measured:
    """All items, with vectors read from a file; and this process's memory along the way."""
    seen: list[tuple[int, float]] = []  # items begun, MiB
    with Gallery.open(bench.gallery) as gallery, (clock := Clock()):
        report = Upgrade(gallery).run(from_file(bench, seen))
    assert report.written == bench.items
    early = max(held for done, held in seen if done <= max(bench.items // 10, seen[0][0]))
    late = max(held for _, held in seen)
    return clock.measured(first_tenth_mib=early, growth_mib=late - early)


def rollback(bench: Bench) -> Measured:
    with Gallery.open(bench.gallery) as gallery:
        with (clock := Clock()):
            Upgrade(gallery).rollback()
        return clock.measured()


def finish(bench: Bench) -> Measured:
    """Started again, which finds the vectors of before; the old ones are dropped."""
    with Gallery.open(bench.gallery) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, order="random")
        with (clock := Clock()):
            upgrade.finish(override="a benchmark")
            assert upgrade.forget().dropped == bench.items
        return clock.measured()


def from_file(bench: Bench, seen: list[tuple[int, float]]) -> Embed:
    done = 0

    def embed(items: Sequence[Item]) -> Embedded:
        nonlocal done
        done += len(items)
        ids = [item.id for item in items]
        numbers = np.array([int(id.rpartition("-")[2]) for id in ids])
        made = Embedded(Embeddings(np.array(ids), rows_of(bench, numbers), NEW))
        seen.append((done, memory()))
        return made

    return embed


def rows_of(bench: Bench, numbers: np.ndarray) -> np.ndarray:
    """(N, D) read one by one: a mapped file would count as memory."""
    handle = os.open(bench.vectors, os.O_RDONLY)
    try:
        parts = [os.pread(handle, ROW, int(number) * ROW) for number in numbers]
    finally:
        os.close(handle)
    return np.frombuffer(b"".join(parts), dtype="<f4").reshape(-1, DIM).copy()


STEPS: dict[str, Callable[[Bench], Measured]] = {
    "add": add,
    "write_vectors": write_vectors,
    "evaluate": evaluate,
    "open": open_gallery,
    "search": search,
    "count": count,
    "verify": verify,
    "plan": plan,
    "start": start,
    "backfill": backfill,
    "rollback": rollback,
    "finish": finish,
}


def main() -> None:
    step, items, folder = sys.argv[1:]
    bench = Bench(int(items), Path(folder))
    bench.world.vectors(OLD, 0, BLOCK)  # libraries that every step needs
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the highest point begins here
    before = memory()
    measured = STEPS[step](bench)
    print(json.dumps({**measured, "peak_mib": highest() - before}))


def highest() -> float:
    """MiB at the highest point since it was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    main()
