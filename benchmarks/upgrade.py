"""What the gallery and a live upgrade cost, as ratios in one run, arms taking turns.

    python -m benchmarks.upgrade --items 100000
    python -m benchmarks.upgrade --items 1000000 --folder DIR --part search --part rollback

Parts: search (Gallery against bare faiss), mixed (half refreshed against one space), recall (ANN
against exact along a backfill), rollback (to the first right answer), memory (and disk), backfill
(images/s against the bare encoder loop), throttle (live p99 during a backfill against idle).
Galleries are made once in --folder and found there again. Writes benchmarks/results/upgrade.csv.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from benchmarks import upgrade_images
from benchmarks.upgrade_world import (
    DIM,
    NEW,
    OLD,
    RESULTS,
    Notes,
    World,
    fill,
    latencies,
    memory,
)

from midspan.gallery import Gallery, Hit
from midspan.gallery.engines.embedded import build
from midspan.spaces import FloatArray, IntArray, Space
from midspan.upgrade import Upgrade

K = 10
ASKED = 1000  # queries
JUDGED = 200  # of them, for recall
BATCH = 100  # queries in one call
SMALL = 60_000  # items below which the gallery would compare every vector


def opened(path: Path, space: Space, queries: FloatArray) -> Gallery:
    """With everything in memory and its index made."""
    gallery = Gallery.open(path)
    gallery.search(queries[:1], space=space)
    gallery.optimise()
    return gallery


# ---- search


def search(world: World, note: Notes) -> None:
    queries = world.queries(OLD, ASKED)
    with opened(world.plain(), OLD, queries) as gallery:
        truth = numbers(gallery.search(queries[:JUDGED], space=OLD, exact=True))
        ours = recall(numbers(gallery.search(queries[:JUDGED], space=OLD)), truth)
        index, settings = flat_engine(world.all(OLD).vectors, queries, truth, ours)

        def bare(first: int, count: int) -> IntArray:
            _, rows = index.search(queries[first : first + count], K, params=settings)
            found: IntArray = rows
            return found

        note("search", "recall@10 gallery", ours, ">= 0.95")
        note("search", "recall@10 IVF of float32", recall(bare(0, JUDGED), truth))

        def through(first: int, count: int) -> list[list[Hit]]:
            return gallery.search(queries[first : first + count], space=OLD)

        arms = {"gallery": through, "IVF of float32": bare}
        compare(note, "one query", arms, 1)
        compare(note, "one query, items found before", arms, 1)
        compare(note, f"{BATCH} queries at once", arms, BATCH)


def compare(
    note: Notes, label: str, arms: dict[str, Callable[[int, int], object]], count: int
) -> None:
    calls = {
        arm: lambda number, ask=ask: ask(number * count, count)  # type: ignore[misc]
        for arm, ask in arms.items()
    }
    times = latencies(calls, ASKED // count, rounds=1 if count == 1 else 3)
    middle = {arm: float(np.median(values)) for arm, values in times.items()}
    for arm, value in middle.items():
        note("search", f"{label}: {arm} p50 ms", value)
    for arm in list(arms)[1:]:
        wanted = "<= 1.2" if arm.startswith("same index, vectors") else ""
        note("search", f"{label}: gallery / {arm}", middle["gallery"] / middle[arm], wanted)


def flat_engine(
    vectors: FloatArray, queries: FloatArray, truth: IntArray, wanted: float
) -> tuple[Any, Any]:
    """faiss' own IVF-Flat, looking into as few lists as give the recall of the gallery."""
    lists = int(2 * np.sqrt(len(vectors)))
    quantiser = faiss.IndexFlat(DIM, faiss.METRIC_INNER_PRODUCT)
    index = faiss.IndexIVFFlat(quantiser, DIM, lists, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    probes = 1
    while True:
        settings = faiss.SearchParametersIVF(nprobe=probes)
        _, found = index.search(queries[:JUDGED], K, params=settings)
        if probes >= lists or recall(found, truth) >= wanted:
            return index, settings
        probes += max(1, probes // 16)


def numbers(found: list[list[Hit]]) -> IntArray:
    rows = [[int(hit.id.rpartition("-")[2]) for hit in hits] for hits in found]
    return np.array(rows, dtype=np.int64)


def recall(found: IntArray, truth: IntArray) -> float:
    pairs = zip(found.tolist(), truth.tolist(), strict=True)
    return float(np.mean([len(set(one) & set(other)) / K for one, other in pairs]))


# ---- mixed, recall


def mixed(world: World, note: Notes) -> None:
    """The same service before an upgrade, in the middle of it and after it."""
    old, new = world.queries(OLD, ASKED), world.queries(NEW, ASKED)
    galleries = {
        "one space, old": (opened(world.plain(), OLD, old), OLD, old),
        "half refreshed": (opened(world.refreshed(0.5), NEW, new), NEW, new),
        "one space, new": (opened(world.refreshed(1.0), NEW, new), NEW, new),
    }

    def arm(gallery: Gallery, space: Space, queries: FloatArray) -> Callable[[int], object]:
        return lambda number: gallery.search(queries[number], space=space)

    times = latencies({name: arm(*settings) for name, settings in galleries.items()}, ASKED)
    middle = {name: float(np.median(values)) for name, values in times.items()}
    for name, (gallery, space, queries) in galleries.items():
        note("mixed", f"{name}: recall@10", quality(gallery, space, queries), ">= 0.95")
        note("mixed", f"{name}: p50 ms", middle[name])
        gallery.close()
    single = max(middle["one space, old"], middle["one space, new"])
    note("mixed", "half refreshed / one space", middle["half refreshed"] / single, "<= 1.15")
    for name in ("one space, old", "one space, new"):
        note("mixed", f"half refreshed / {name}", middle["half refreshed"] / middle[name])


def quality(gallery: Gallery, space: Space, queries: FloatArray) -> float:
    rough = numbers(gallery.search(queries[:JUDGED], space=space))
    exact = numbers(gallery.search(queries[:JUDGED], space=space, exact=True))
    return recall(rough, exact)


def along(world: World, note: Notes) -> None:
    """Recall with default settings while the vectors change; nobody asks for a new index."""
    old, new = world.queries(OLD, ASKED), world.queries(NEW, ASKED)
    vectors = world.all(NEW)
    path = world.copy(world.plain())
    with opened(path, OLD, old) as gallery, Gallery.open(path) as other:
        note("recall", "before", quality(gallery, OLD, old), ">= 0.95")
        upgrade = Upgrade.start(other, to=NEW, mode="direct", order="random")
        lowest = 1.0
        for share in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0):
            fill(upgrade, vectors, round(share * world.items))
            now = quality(gallery, NEW, new)
            settle(gallery, new)
            later = quality(gallery, NEW, new)
            note("recall", f"at {share:.0%}, at once", now)
            note("recall", f"at {share:.0%}, settled", later, ">= 0.95")
            lowest = min(lowest, later)
        upgrade.finish(override="a benchmark")
        upgrade.forget()
        settle(gallery, new)
        note("recall", "finished", quality(gallery, NEW, new), ">= 0.95")
        note("recall", "lowest of all settled", lowest, ">= 0.95")
    path.unlink()


def settle(gallery: Gallery, queries: FloatArray) -> None:
    """Let the index's own thread do what it thinks is to be done, as in a service between queries.

    It is idle when it has not used the processor for a second.
    """
    quiet, used = 0.0, time.process_time()
    while quiet < 1.0:
        gallery.search(queries[:1], space=NEW)
        time.sleep(0.25)
        now = time.process_time()
        quiet = quiet + 0.25 if now - used < 0.05 else 0.0
        used = now


# ---- rollback, memory


def rollback(world: World, note: Notes) -> None:
    """One process serves, another rolls back: until the serving one gives the old answers again."""
    old, new = world.queries(OLD, 10), world.queries(NEW, 10)
    with opened(world.plain(), OLD, old) as gallery:
        truth = numbers(gallery.search(old, space=OLD, exact=True))
    for share in (0.5, 1.0):
        path = world.copy(world.refreshed(share))
        with opened(path, NEW, new) as serving, Gallery.open(path) as other:
            started = time.perf_counter()
            Upgrade(other).rollback()
            called = time.perf_counter() - started
            found = numbers(serving.search(old[:1], space=OLD))
            whole = time.perf_counter() - started
            assert recall(found, truth[:1]) == 1.0, "not the old answer"
            label = f"at {share:.0%} refreshed"
            note("rollback", f"{label}: the call s", called)
            note("rollback", f"{label}: to the first right answer s", whole, "< 2")
            begun = time.perf_counter()
            numbers(serving.search(old[1:2], space=OLD))
            note("rollback", f"{label}: next search s", time.perf_counter() - begun)
        path.unlink()


def weigh(world: World, note: Notes) -> None:
    """Each in a process of its own."""
    for label, path in (("one space", world.plain()), ("half refreshed", world.refreshed(0.5))):
        files = [path, *path.parent.glob(f"{path.name}-*")]
        note("memory", f"{label}: disk MiB", sum(file.stat().st_size for file in files) / 2**20)
        command = [sys.executable, "-m", "benchmarks.upgrade", "--weigh", str(path)]
        output = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1]
        )
        for line in output.stdout.splitlines():
            what, _, value = line.rpartition(" ")
            note("memory", f"{label}: {what}", float(value))


def weigh_one(path: Path) -> None:
    print("memory before MiB", memory())
    started = time.perf_counter()
    gallery = Gallery.open(path)
    space = gallery.space
    query = np.ones((1, DIM), dtype=np.float32)
    gallery.search(query, space=space)
    print("load and first search s", time.perf_counter() - started)
    print("memory loaded MiB", memory())
    started = time.perf_counter()
    gallery.optimise()
    print("index made s", time.perf_counter() - started)
    print("memory with index MiB", memory())
    print("peak memory MiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    gallery.close()


PARTS: dict[str, Callable[[World, Notes], None]] = {
    "search": search,
    "mixed": mixed,
    "recall": along,
    "rollback": rollback,
    "memory": weigh,
    "backfill": upgrade_images.backfill,
    "throttle": upgrade_images.throttle,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--folder", type=Path, help="where galleries are kept for the next run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--prepare", action="store_true", help="make the galleries and stop")
    parser.add_argument("--weigh", type=Path, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.weigh is not None:
        weigh_one(settings.weigh)
        return
    parts = settings.part or list(PARTS)
    if settings.items < SMALL:
        build.FLAT_UP_TO = 0  # an index in any case, so that the script can be tried in seconds
    with tempfile.TemporaryDirectory(prefix="bench-upgrade-") as folder:
        place: Path = settings.folder or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        world = World(settings.items, place)
        note = Notes(settings.items)
        if settings.prepare:
            for share in (0.5, 1.0):
                world.refreshed(share)
            return
        for part in parts:
            PARTS[part](world, note)
    note.save(parts, settings.results)


if __name__ == "__main__":
    main()
