"""What an order loses in buckets of priority, and what writing it costs.

    python -m benchmarks.buckets                                   # both parts, 20,000 items
    python -m benchmarks.buckets --part order --old OLD.npz --new NEW.npz
    python -m benchmarks.buckets --part write --items 1000000

order: the area under the backfill's curve (mean average precision of the new encoder's queries on
a gallery that goes from old to new vectors) in the exact order and in buckets whose edges come from
a sample of --sample other items; and how many pairs of items change places. Without files: classes
of about forty items, seen with much noise by the old encoder and with little by the new one.
write: seconds for the priorities of all items of a gallery file, exact and in buckets, and MiB that
this wrote. Writes benchmarks/results/buckets.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from benchmarks.upgrade_world import NEW, OLD, World

from midspan.evaluation import backfill_curve
from midspan.gallery import Gallery
from midspan.spaces import Embeddings, Space
from midspan.upgrade import Upgrade, order_named
from midspan.upgrade.buckets import Buckets, Float64
from midspan.upgrade.orders import CENTRES, Hints
from midspan.upgrade.priorities import hints_for, prioritise

RESULTS = Path(__file__).parent / "results" / "buckets.csv"
COUNTS = (16, 64, 256, 1024)
WRITTEN = (256, 1024)
ORDERS = ("least_confidence", "entropy", "class_distance", "bridge_error")
POINTS = 11
QUERIES = 1000
COLUMNS = ("part", "items", "order", "buckets", "what", "value", "date", "load")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=["order", "write"], action="append")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--sample", type=int, default=5000, help="items that edges come from")
    parser.add_argument("--old", type=Path)
    parser.add_argument("--new", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows: list[dict[str, object]] = []
    for part in given.part or ["order", "write"]:
        if part == "order":
            if (given.old is None) != (given.new is None):
                parser.error("--old and --new come together")
            if given.old is not None:
                old, new = Embeddings.load(given.old).paired_with(Embeddings.load(given.new))
            else:
                old, new = pictures(given.items + given.sample)
            found = order_loss(old, new, sample=given.sample)
        else:
            found = writing(given.items)
        for items, order, buckets, what, value in found:
            row = (part, items, order, buckets, what, f"{value:.6g}")
            date, load = time.strftime("%Y-%m-%d"), round(os.getloadavg()[0], 1)
            rows.append(dict(zip(COLUMNS, (*row, date, load), strict=True)))
            print(*row, flush=True)
    save(rows, given.results)


def save(rows: list[dict[str, object]], path: Path) -> None:
    """Rows of the same part and size are replaced."""
    kept: list[dict[str, str]] = []
    mine = {(str(row["part"]), str(row["items"])) for row in rows}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            kept = [row for row in csv.DictReader(file) if (row["part"], row["items"]) not in mine]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *rows])


Found = Iterator[tuple[int, str, str, str, float]]  # items, order, buckets, what, value


def order_loss(old: Embeddings, new: Embeddings, *, sample: int) -> Found:
    drawn = np.random.default_rng(1).permutation(len(old))
    known, rest = drawn[:sample], np.sort(drawn[sample:])
    gallery, fresh = old[rest], new[rest]
    asked = new[np.sort(np.random.default_rng(2).permutation(rest)[:QUERIES])]

    def area(priorities: Float64) -> float:
        order = np.argsort(-priorities, kind="stable")
        curve = backfill_curve(
            query=asked, gallery_old=gallery, gallery_new=fresh, order=order, points=POINTS
        )
        return float(np.trapezoid(curve.values, curve.fractions))

    chance = area(np.random.default_rng(3).random(len(rest)))
    yield len(rest), "random", "exact", "area", chance
    for name in ORDERS:
        seen = old if name in CENTRES else Embeddings(old.ids, old.vectors, old.space)
        hints = hints_for(name, seen[known], new=new[known])
        exact, learnt = order_named(name)(seen[rest], hints), order_named(name)(seen[known], hints)
        best = area(exact)
        yield len(rest), name, "exact", "area", best
        for count in COUNTS:
            buckets = Buckets.fit(learnt, count=count)
            rough = buckets(exact)
            found = area(rough)
            yield len(rest), name, str(count), "area", found
            yield len(rest), name, str(count), "area lost", best - found
            yield len(rest), name, str(count), "pairs in another order", inverted(exact, rough)
            yield len(rest), name, str(count), "mean places lost, share", displaced(exact, rough)


def inverted(exact: Float64, rough: Float64, *, pairs: int = 1_000_000) -> float:
    """Share of drawn pairs whose order is turned round; equal ones stand in the order of adding."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, len(exact), pairs) for _ in range(2))
    first, second = np.minimum(a, b), np.maximum(a, b)
    apart = first != second
    wanted = exact[first] >= exact[second]
    got = rough[first] >= rough[second]
    return float((wanted != got)[apart].mean())


def displaced(exact: Float64, rough: Float64) -> float:
    places = np.empty((2, len(exact)))
    for row, values in enumerate((exact, rough)):
        places[row, np.argsort(-values, kind="stable")] = np.arange(len(exact))
    return float(np.abs(places[0] - places[1]).mean() / len(exact))


def pictures(count: int) -> tuple[Embeddings, Embeddings]:
    """The same pictures seen by both encoders."""
    rng = np.random.default_rng(0)
    dim, classes = 64, max(2, count // 40)
    labels = rng.integers(0, classes, count)
    meaning = rng.standard_normal((classes, dim))[labels] + 0.6 * rng.standard_normal((count, dim))
    clear = rng.lognormal(sigma=0.6, size=(count, 1))  # some pictures are harder than others
    ids = np.array([f"item-{number:08}" for number in range(count)])
    parts = []
    for name, noise in (("old", 1.4), ("new", 0.5)):
        rows = meaning + noise * clear * rng.standard_normal((count, dim))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        known = ("bench-old",) if name == "new" else ()
        space = Space(name, dim, fingerprint=f"bench-{name}", compatible_with=known)
        parts.append(
            Embeddings(ids, rows.astype(np.float32), space, {"labels": labels.astype(np.str_)})
        )
    return parts[0], parts[1]


def writing(items: int) -> Found:
    with tempfile.TemporaryDirectory(prefix="bench-buckets-") as folder:
        world = World(items, Path(folder))
        for arm in ("exact", *map(str, WRITTEN)):
            path = world.copy(world.plain())
            with Gallery.open(path) as gallery:
                Upgrade.start(gallery, to=NEW, mode="direct", order="newest")
                hints = Hints()
                buckets = (
                    None
                    if arm == "exact"
                    else Buckets.fit(np.arange(10_000) / 10_000, count=int(arm))
                )
                before, began = written_bytes(), time.perf_counter()
                prioritise(gallery, "random", hints, space=OLD.fingerprint, buckets=buckets)
                yield items, "random", arm, "seconds", time.perf_counter() - began
                yield items, "random", arm, "MiB written", (written_bytes() - before) / 2**20


def written_bytes() -> int:
    """By this process, as the kernel counts them."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar:")).split()[1])


if __name__ == "__main__":
    main()
