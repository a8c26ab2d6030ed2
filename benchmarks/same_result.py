"""One upgrade in every engine: the same answers as exact search in NumPy, at each moment of it.

    python -m benchmarks.same_result                             # 10,000 items in all engines
    python -m benchmarks.same_result --items 1000000 --engine embedded --engine pgvector
    python -m benchmarks.same_result --items 100000 --engine milvus

A gallery is filled, an upgrade started, half of it refreshed in the order of uncertainty, then all
of it, then rolled back, started again and finished. At each of these moments a sample of queries
asks for its ten best items with `exact=True`, and the ids are compared with those that plain NumPy
finds among the vectors that should be live: which items are refreshed is read from the gallery and
counted, and with the order the same items must be refreshed in all engines. So is a search through
the engine's index (recall@10). Equal scores may stand in any order: ids count as the same if their
scores differ by less than 1e-5. Writes benchmarks/results/same_result.csv; exit code 1 if an exact
answer differs.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks.engines import ENGINES, place
from benchmarks.upgrade_world import NEW, OLD, World, name

from midspan.gallery import Gallery, Hit
from midspan.spaces import Embeddings, FloatArray, Space
from midspan.upgrade import Settings, Upgrade, from_embeddings

RESULTS = Path(__file__).parent / "results" / "same_result.csv"
K = 10
QUERIES = 50
SAME = 1e-5  # two scores that float32 arithmetic may order either way
BATCH = 5000
MOMENTS = ("added", "started", "half", "refreshed", "rolled back", "finished")
COLUMNS = (
    *("engine", "items", "moment", "queries", "exact_same", "recall", "refreshed", "digest"),
    *("exact_ms", "seconds", "date", "load"),
)


class Run:
    def __init__(self, engine: str, world: World, old: FloatArray, new: Embeddings) -> None:
        self.engine, self.world, self.old, self.new = engine, world, old, new
        self.rows: list[dict[str, object]] = []
        self.began = time.perf_counter()

    def whole(self, location: str) -> None:
        """Every moment of an upgrade, with a look at each."""
        with Gallery.create(location, OLD) as gallery:
            self.fill(gallery)
            gallery.optimise()
            self.look(gallery, "added", OLD)
            upgrade = Upgrade.start(gallery, to=NEW, order="uncertainty")
            self.look(gallery, "started", NEW)
            settings = Settings(batch=2000)
            half = self.world.items // 2
            upgrade.run(from_embeddings(self.new), limit=half, settings=settings)
            self.look(gallery, "half", NEW)
            upgrade.run(from_embeddings(self.new), settings=settings)
            gallery.optimise()
            self.look(gallery, "refreshed", NEW)
            upgrade.rollback()
            self.look(gallery, "rolled back", OLD)
            upgrade = Upgrade.start(gallery, to=NEW, order="random")
            upgrade.finish(override="a benchmark")
            upgrade.forget()
            self.look(gallery, "finished", NEW)

    def fill(self, gallery: Gallery) -> None:
        for first in range(0, self.world.items, BATCH):
            numbers = range(first, min(first + BATCH, self.world.items))
            ids = np.array([name(number) for number in numbers])
            gallery.add(
                Embeddings(ids, self.old[first : numbers.stop], OLD),
                uris=[f"images/{id}.jpg" for id in ids],
                payloads=[{"n": number % 10} for number in numbers],
            )

    def look(self, gallery: Gallery, moment: str, space: Space) -> None:
        """Which items are refreshed, what they are compared with, and the answers."""
        fresh = self.refreshed(gallery) if space is NEW else np.zeros(self.world.items, bool)
        queries = self.world.queries(space, QUERIES)
        truth = exact(np.where(fresh[:, None], self.new.vectors, self.old), queries)
        began = time.perf_counter()
        answers = gallery.search(queries, k=K, space=space, exact=True)
        seconds = time.perf_counter() - began
        through = gallery.search(queries, k=K, space=space)
        same = [agree(hits, *one) for hits, one in zip(answers, truth, strict=True)]
        found = [
            len(set(numbers(hits)) & set(best.tolist())) / K
            for hits, (best, _) in zip(through, truth, strict=True)
        ]
        values = (
            *(self.engine, self.world.items, moment, QUERIES, sum(same), f"{np.mean(found):.4f}"),
            *(int(fresh.sum()), hashlib.sha256(fresh.tobytes()).hexdigest()[:12]),
            *(f"{1e3 * seconds / QUERIES:.2f}", f"{time.perf_counter() - self.began:.1f}"),
            *(time.strftime("%Y-%m-%d"), round(os.getloadavg()[0], 1)),
        )
        self.rows.append(dict(zip(COLUMNS, values, strict=True)))
        print(*values, flush=True)

    def refreshed(self, gallery: Gallery) -> np.ndarray:
        """(N,) which items have a new vector, by the work list's other side: a scan."""
        waiting, after = np.zeros(self.world.items, bool), ""
        missing = NEW.fingerprint
        while page := gallery.scan(missing=missing, after=after, limit=BATCH):
            after = page[-1].id
            waiting[[int(item.id.rpartition("-")[2]) for item in page]] = True
        return ~waiting


def exact(live: FloatArray, queries: FloatArray) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each query the numbers of its best items, and the score of every item."""
    found = []
    for query in queries:
        scores = live @ query  # (N,) unit vectors
        best = np.argpartition(-scores, K)[:K]
        found.append((best[np.argsort(-scores[best], kind="stable")], scores))
    return found


def agree(hits: list[Hit], best: np.ndarray, scores: np.ndarray) -> bool:
    """The same ids in the same places, or others whose true score is the same."""
    got = np.array(numbers(hits), dtype=np.int64)
    return len(got) == K and bool((np.abs(scores[got] - scores[best]) < SAME).all())


def numbers(hits: list[Hit]) -> list[int]:
    return [int(hit.id.rpartition("-")[2]) for hit in hits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=float, default=1e4)
    parser.add_argument("--engine", action="append", choices=ENGINES)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    items, engines = int(given.items), given.engine or list(ENGINES)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="bench-same-") as folder:
        world = World(items, Path(folder))
        old = np.concatenate([world.vectors(OLD, *block) for block in world.blocks()])
        new = world.all(NEW)
        for engine in engines:
            run = Run(engine, world, old, new)
            with place(engine, Path(folder)) as where:
                run.whole(where.location)
            rows += run.rows
            save(rows, given.results)
    wrong = [row for row in rows if row["exact_same"] != QUERIES]
    by_moment = {
        moment: {row["digest"] for row in rows if row["moment"] == moment} for moment in MOMENTS
    }
    apart = [moment for moment, digests in by_moment.items() if len(digests) > 1]
    print(f"{len(rows)} looks, {len(wrong)} with another exact answer than NumPy's")
    print(f"moments at which engines had refreshed different items: {', '.join(apart) or 'none'}")
    sys.exit(bool(wrong or apart))


def save(rows: list[dict[str, object]], path: Path) -> None:
    """Rows of the same engine and size are replaced."""
    mine = {(str(row["engine"]), str(row["items"])) for row in rows}
    kept: list[dict[str, str]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            kept = [r for r in csv.DictReader(file) if (r["engine"], r["items"]) not in mine]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *rows])


if __name__ == "__main__":
    main()
