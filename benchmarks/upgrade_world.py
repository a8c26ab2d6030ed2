"""Vectors, galleries and the result file of benchmarks/upgrade.py.

Every picture has a class (of fifty pictures on average) and its own look; both are Gaussian with a
spectrum that falls like n^-0.8, as those of real embeddings do. The old encoder sees much of the
look. The new one sees less of it, and all its vectors lean to one side: so lists that were learnt
from old vectors are not those that new vectors want.
"""

from __future__ import annotations

import csv
import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from midspan.gallery import Gallery
from midspan.spaces import Embeddings, FloatArray, Space
from midspan.upgrade import Settings, Upgrade, from_embeddings

RESULTS = Path(__file__).parent / "results" / "upgrade.csv"
DIM = 128
OLD = Space(name="old", dim=DIM, fingerprint="bench-old")
NEW = Space(name="new", dim=DIM, fingerprint="bench-new", compatible_with=("bench-old",))
BLOCK = 50_000
TURN = 25  # calls of one arm before the next has its turn
QUERIES = 10**9  # the block that queries come from
COLUMNS = ("part", "items", "what", "value", "wanted", "date", "load", "machine")


class World:
    def __init__(self, items: int, folder: Path) -> None:
        self.items, self.folder = items, folder
        rng = np.random.default_rng(0)
        self.spectrum = (np.arange(1, DIM + 1) ** -0.8).astype(np.float32)
        self.turn = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0].astype(np.float32)
        classes = max(1, items // 50)
        self.centres = rng.standard_normal((classes, DIM), dtype=np.float32) * self.spectrum
        self.lean = 0.7 * rng.standard_normal(DIM).astype(np.float32) * self.spectrum

    def vectors(self, space: Space, first: int, count: int) -> FloatArray:
        """(count, D) of the pictures of one block."""
        rng = np.random.default_rng(first)
        rows = self.centres[rng.integers(0, len(self.centres), count)]
        look = rng.standard_normal((count, DIM), dtype=np.float32) * self.spectrum
        own = rng.standard_normal((count, DIM), dtype=np.float32) * self.spectrum
        if space is OLD:
            rows = rows + 0.8 * look
        else:
            rows = rows + 0.4 * look + 0.3 * own + self.lean
        rows = rows @ self.turn
        units: FloatArray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return units.astype(np.float32)

    def all(self, space: Space) -> Embeddings:
        rows = [self.vectors(space, first, count) for first, count in self.blocks()]
        ids = np.array([name(number) for number in range(self.items)])
        return Embeddings(ids=ids, vectors=np.concatenate(rows), space=space)

    def queries(self, space: Space, count: int) -> FloatArray:
        return self.vectors(space, QUERIES, count)

    def blocks(self) -> list[tuple[int, int]]:
        starts = range(0, self.items, BLOCK)
        return [(first, min(BLOCK, self.items - first)) for first in starts]

    # ---- galleries: made once in the folder, then found there

    def plain(self) -> Path:
        """All items, old vectors."""
        path = self.folder / f"bench-{self.items}.midspan"
        if not path.exists():
            part = path.with_suffix(".part")
            part.unlink(missing_ok=True)
            with Gallery.create(part, OLD) as gallery:
                for first, count in self.blocks():
                    ids = [name(number) for number in range(first, first + count)]
                    gallery.add(
                        Embeddings(np.array(ids), self.vectors(OLD, first, count), OLD),
                        uris=[f"images/{id}.jpg" for id in ids],
                        payloads=[{"n": number % 10} for number in range(first, first + count)],
                    )
            part.rename(path)
        return path

    def refreshed(self, share: float) -> Path:
        """A direct upgrade under way, this share of the items refreshed."""
        path = self.folder / f"bench-{self.items}-{round(100 * share)}.midspan"
        if not path.exists():
            part = path.with_suffix(".part")
            shutil.copy(self.plain(), part)
            with Gallery.open(part) as gallery:
                upgrade = Upgrade.start(gallery, to=NEW, mode="direct", order="random")
                fill(upgrade, self.all(NEW), round(share * self.items))
            part.rename(path)
        return path

    def copy(self, path: Path) -> Path:
        """One that may be changed."""
        made = path.with_suffix(".work")
        for leftover in made.parent.glob(f"{made.name}*"):  # of a run that was killed
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        shutil.copy(path, made)
        return made


def fill(upgrade: Upgrade, new: Embeddings, upto: int) -> None:
    """Backfill until so many items are refreshed."""
    done = upgrade.gallery.count().done
    if upto > done:
        settings = Settings(batch=2000)
        upgrade.run(from_embeddings(new), limit=upto - done, settings=settings)


def name(number: int) -> str:
    return f"item-{number:08}"


# ---- measuring


def latencies(
    arms: Mapping[str, Callable[[int], object]], count: int, rounds: int = 1
) -> dict[str, FloatArray]:
    """Milliseconds of each call; arms take turns of some calls, as a service has them in a row.

    No two turns in a row have the same queries: an arm would find in the cache what the one before
    it has read.
    """
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    shift = max(1, count // len(arms))
    for first in range(0, count * rounds, TURN):
        for place, (arm, call) in enumerate(arms.items()):
            for number in range(first, min(first + TURN, count * rounds)):
                query = (number + place * shift) % count
                begun = time.perf_counter()
                call(query)
                times[arm].append((time.perf_counter() - begun) * 1e3)
    return {arm: np.array(values, dtype=np.float32) for arm, values in times.items()}


def memory() -> float:
    """MiB in use by this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Notes:
    """Rows of the result file; a part that is run again replaces its former rows."""

    def __init__(self, items: int) -> None:
        self.items = items
        self.rows: list[dict[str, object]] = []

    def __call__(self, part: str, what: str, value: float, wanted: str = "") -> None:
        self.rows.append(
            {
                "part": part,
                "items": self.items,
                "what": what,
                "value": round(float(value), 4),
                "wanted": wanted,
                "date": time.strftime("%Y-%m-%d"),
                "load": round(os.getloadavg()[0], 1),
                "machine": f"{platform.machine()} {os.cpu_count()} cores",
            }
        )
        print(f"{part:9} {what:52} {value:12.4f}  {wanted}", flush=True)

    def save(self, parts: Sequence[str], path: Path = RESULTS) -> None:
        kept = []
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                kept = [
                    row
                    for row in csv.DictReader(file)
                    if row["part"] not in parts or row["items"] != str(self.items)
                ]
        path.parent.mkdir(exist_ok=True)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
            writer.writerows(self.rows)
