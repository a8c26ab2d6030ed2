"""Images a second of a backfill on Ray workers beside the local run, in one run, arms taking turns.

    python -m benchmarks.ray_backfill                       # about 3 minutes on a quiet machine
    python -m benchmarks.ray_backfill --images 400 --rounds 1

The same JPEG files, the same encoder (small-resnet, 32 pixels, 128-d), a gallery in a SQLite file
for each turn. The cluster is a head and two nodes with one core each, all on this machine: on two
cores it shows what Ray costs, not what a cluster gains. Clocks start when all encoders are loaded.
`no encoder`: workers that give vectors at once, so that only claiming, sending and writing is left,
which is what one process can keep up with. Writes benchmarks/results/ray_backfill.csv.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.upgrade_images import images
from benchmarks.upgrade_world import NEW, Notes, name
from tests.upgrade.ray_cluster import started

from midspan.gallery import Gallery, Item
from midspan.spaces import Embeddings, Space
from midspan.upgrade import Embed, Embedded, Upgrade
from midspan.upgrade.cluster import Make, Workers, run_on_cluster

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "ray_backfill.csv"
FILES = 1000  # different images; a larger gallery has each several times
BARE = 10  # times as many items where nothing is embedded


# ---- what the workers load


@functools.cache
def encoder() -> Any:
    from midspan.encoders import build_encoder

    made = build_encoder(backbone="small-resnet", dim=128, size=32, channels=3, seed=0)
    made.compatible_with = ("old",)
    return made.eval()


def real() -> tuple[Space, Embed]:
    from midspan.upgrade import images_embedder

    return encoder().space, images_embedder(encoder())


def bare() -> tuple[Space, Embed]:
    """Vectors that cost nothing: what is left is the work of the one process that writes."""
    rows = np.random.default_rng(0).standard_normal((4096, NEW.dim)).astype(np.float32)

    def embed(items: Sequence[Item]) -> Embedded:
        ids = np.array([item.id for item in items])
        return Embedded(Embeddings(ids, rows[: len(items)], NEW))

    return NEW, embed


def together(load: Make, folder: Path, workers: int) -> tuple[Space, Embed]:
    """Ready when all are: otherwise the first worker would be measured alone for a while."""
    loaded = load()
    (folder / f"{uuid.uuid4().hex}.ready").touch()
    while len(list(folder.glob("*.ready"))) < workers:
        time.sleep(0.01)
    return loaded


# ---- the arms: seconds for all items


@contextmanager
def gallery_of(paths: Sequence[Path], to: Space, folder: Path) -> Iterator[Gallery]:
    """All items with old vectors, an upgrade begun."""
    for file in folder.glob("ray.midspan*"):
        file.unlink()
    old = Space(name="old", dim=to.dim, metric=to.metric, fingerprint=to.compatible_with[0])
    ids = np.array([name(number) for number in range(len(paths))])
    rows = np.random.default_rng(0).standard_normal((len(ids), to.dim)).astype(np.float32)
    with Gallery.create(folder / "ray.midspan", old) as gallery:
        gallery.add(Embeddings(ids, rows, old), uris=[str(path) for path in paths])
        Upgrade.start(gallery, to=to, mode="direct", order="random")
        yield gallery
        assert gallery.count().done == len(paths)


def on_ray(gallery: Gallery, load: Make, *, workers: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        make = functools.partial(together, load, Path(folder), workers)
        report = run_on_cluster(gallery, make, workers=Workers("auto", count=workers))
    assert (report.workers, report.lost) == (workers, 0)
    return report.report.seconds


def locally(gallery: Gallery, *, processes: int, threads: int) -> float:
    """Processes of their own, that begin together when all have loaded."""
    command = [sys.executable, "-m", "benchmarks.ray_backfill", "--work", gallery.location]
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, cwd=ROOT, env=env, **pipes) for _ in range(processes)]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    started = time.monotonic()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in running:
        assert process.wait(timeout=300) == 0
    return time.monotonic() - started


def work(location: str) -> None:
    embed = real()[1]
    embed([Item("warm", None, {}, 1, 0.0, 0.0, ())])
    with Gallery.open(location) as gallery:
        print("ready", flush=True)
        sys.stdin.readline()
        Upgrade(gallery).run(embed)
        os._exit(0)  # the interpreter's own end is no part of it


# ---- the run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", help=argparse.SUPPRESS)  # a local process
    asked = parser.parse_args()
    if asked.work:
        work(asked.work)
        return
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as made, started(nodes=2):
        folder = Path(made)
        files = images(folder / "images", min(asked.images, FILES))
        paths = [files[number % len(files)] for number in range(asked.images)]
        arms: dict[str, Callable[[Gallery], float]] = {
            "local, 1 process, 1 thread": lambda g: locally(g, processes=1, threads=1),
            f"local, 1 process, {cores} threads": lambda g: locally(g, processes=1, threads=cores),
            "local, 2 processes, 1 thread each": lambda g: locally(g, processes=2, threads=1),
            "Ray, 1 worker": lambda g: on_ray(g, real, workers=1),
            "Ray, 2 workers": lambda g: on_ray(g, real, workers=2),
        }
        rates: dict[str, list[float]] = {arm: [] for arm in arms}
        for _ in range(asked.rounds):
            for arm, run in arms.items():
                with gallery_of(paths, encoder().space, folder) as gallery:
                    rates[arm].append(len(paths) / run(gallery))
                print(f"{arm}: {rates[arm][-1]:,.0f} images/s", flush=True)
        with gallery_of(BARE * paths, NEW, folder) as gallery:
            ceiling = BARE * len(paths) / on_ray(gallery, bare, workers=2)
    best = {arm: max(values) for arm, values in rates.items()}
    note = Notes(asked.images)
    for arm, rate in best.items():
        note("ray", f"{arm}: images/s", rate)
    one, two = best["local, 1 process, 1 thread"], best["local, 2 processes, 1 thread each"]
    note("ray", "Ray, 1 worker / local, 1 process, 1 thread", best["Ray, 1 worker"] / one)
    note("ray", "Ray, 2 workers / local, 2 processes", best["Ray, 2 workers"] / two)
    note("ray", "Ray, 2 workers / local, 1 process, 1 thread", best["Ray, 2 workers"] / one)
    note("ray", "no encoder: items/s of the process that claims and writes", ceiling)
    note("ray", "no encoder: hours for 10^9 items", 1e9 / ceiling / 3600)
    asked.results.unlink(missing_ok=True)  # one run, whatever its size
    note.save(["ray"], asked.results)


if __name__ == "__main__":
    from benchmarks import ray_backfill  # workers find its functions by that name, not in __main__

    ray_backfill.main()
