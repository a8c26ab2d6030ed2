"""Two parts of benchmarks/upgrade.py with a real encoder: backfill and throttle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from benchmarks.upgrade_world import NEW, Notes, World, name
from PIL import Image

from midspan.gallery import Gallery
from midspan.spaces import Embeddings, Space
from midspan.upgrade import Settings, Upgrade
from midspan.upgrade.throttle import live_latency

BATCH = 64  # of the bare loop
FILES = 4096
SIZE = 96  # pixels of the files; the encoder takes 32
SECONDS = 3.0  # of searching in one turn, idle or during the backfill
TURNS = 6
PAUSE = 0.005  # between two searches: a service at about 150 queries a second


def images(folder: Path, count: int) -> list[Path]:
    """JPEG files of smooth colours, made once."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name(number)}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            rng = np.random.default_rng(number)
            small = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(small).resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(path)
    return paths


# ---- images a second

Spent = tuple[float, float]  # seconds of the clock, and of the processor


def clocks() -> Spent:
    return time.perf_counter(), time.process_time()


def since(started: Spent) -> Spent:
    now = clocks()
    return now[0] - started[0], now[1] - started[1]


def backfill(world: World, note: Notes) -> None:
    """The bare loop decodes a batch in threads and runs the encoder on it, nothing else."""
    from midspan.encoders import build_encoder

    paths = images(world.folder / "images", min(world.items, FILES)) * 2
    count = len(paths)
    encoder = build_encoder(backbone="small-resnet", dim=128, size=32, channels=3, seed=0).eval()
    rates: dict[str, list[float]] = {"bare loop": [], "embed()": [], "backfill": []}
    spent: dict[str, list[float]] = {arm: [] for arm in rates}
    for turn in range(2 if world.items < 1000 else 3):
        for arm, (seconds, cpu) in (
            ("bare loop", bare_loop(encoder, paths)),
            ("embed()", embed_all(encoder, paths)),
            ("backfill", backfill_once(encoder, paths, world.folder)),
        ):
            if turn:  # the first one warms up
                rates[arm].append(count / seconds)
                spent[arm].append(cpu / count * 1e3)
    best = {arm: max(values) for arm, values in rates.items()}
    for arm, rate in best.items():
        note("backfill", f"{arm} images/s", rate)
    note("backfill", "backfill / bare loop", best["backfill"] / best["bare loop"], ">= 0.95")
    note("backfill", "backfill / embed()", best["backfill"] / best["embed()"])
    for arm, values in spent.items():
        note("backfill", f"{arm} processor ms an image", min(values))


def bare_loop(encoder: object, paths: list[Path]) -> Spent:
    import torch

    from midspan.encoders import Encoder

    assert isinstance(encoder, Encoder)
    ready = encoder.preprocessing
    mean = torch.tensor(ready.mean).view(1, 3, 1, 1)
    std = torch.tensor(ready.std).view(1, 3, 1, 1)

    def decode(path: Path) -> np.ndarray:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((32, 32), Image.Resampling.BICUBIC))

    out = []
    started = clocks()
    with ThreadPoolExecutor(os.cpu_count()) as pool, torch.inference_mode():
        for first in range(0, len(paths), BATCH):
            pixels = np.stack(list(pool.map(decode, paths[first : first + BATCH])))
            batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)
            out.append(encoder(batch.sub_(mean).div_(std)).numpy())
    return since(started)


def embed_all(encoder: object, paths: list[Path]) -> Spent:
    from midspan.data import ImageSet
    from midspan.data.sources import FileSource
    from midspan.encoders import Encoder

    assert isinstance(encoder, Encoder)
    names = np.array([str(path) for path in paths])
    ids = np.array([name(number) for number in range(len(paths))])
    started = clocks()
    encoder.embed(ImageSet(ids=ids, source=FileSource(root=Path(), names=names)), progress=False)
    return since(started)


def backfill_once(encoder: object, paths: list[Path], folder: Path) -> Spent:
    """As `midspan upgrade run GALLERY --encoder RUN` does it; opening and starting not timed."""
    from midspan.encoders import Encoder
    from midspan.upgrade import images_embedder

    assert isinstance(encoder, Encoder)
    location = folder / "images.midspan"
    for file in folder.glob("images.midspan*"):
        file.unlink()
    old = Space(name="old", dim=128, fingerprint="old")
    new = Space(
        name=encoder.space.name,
        dim=128,
        metric=encoder.space.metric,
        fingerprint=encoder.space.fingerprint,
        compatible_with=("old",),
    )
    ids = np.array([name(number) for number in range(len(paths))])
    rows = np.random.default_rng(0).standard_normal((len(ids), 128)).astype(np.float32)
    with Gallery.create(location, old) as gallery:
        gallery.add(Embeddings(ids, rows, old), uris=[str(path) for path in paths])
        upgrade = Upgrade.start(gallery, to=new, mode="direct", order="random")
        started = clocks()
        report = upgrade.run(images_embedder(encoder))
        seconds = since(started)
        assert report.new == len(paths), report
    return seconds


# ---- the live search beside a backfill


def throttle(world: World, note: Notes) -> None:
    """Searches in this process, the backfill in another; the same queries idle and meanwhile."""
    paths = images(world.folder / "images", min(world.items, FILES))
    location = world.copy(world.plain())
    queries = world.queries(NEW, 1000)
    with Gallery.open(location) as gallery:
        upgrade = Upgrade.start(gallery, to=NEW, mode="direct", order="random")
        live = searcher(upgrade, queries)
        command = [sys.executable, "-m", "benchmarks.upgrade_images", str(location)]
        command.append(str(paths[0].parent))
        for label, gentle in (("throttled", True), ("unthrottled", False)):
            live(1.0)
            gallery.optimise()
            with subprocess.Popen(
                [*(["nice", "-n", "10"] if gentle else []), *command, str(int(gentle))],
                cwd=Path(__file__).parents[1],
                env={**os.environ, **({"OMP_NUM_THREADS": "1"} if gentle else {})},
                stdout=subprocess.PIPE,
                text=True,
            ) as worker:
                assert worker.stdout is not None
                ready = threading.Thread(target=worker.stdout.readline)
                ready.start()
                while ready.is_alive():
                    live(0.5)
                before = gallery.count().done
                idle, times = take_turns(live, worker)
                rate = (gallery.count().done - before) / (TURNS * (SECONDS + 0.5))
                worker.kill()
            note("throttle", f"{label}: images/s meanwhile", rate)
            report(note, f"{label}: idle", idle)
            report(note, label, times)
            ratio = float(np.percentile(times, 99) / np.percentile(idle, 99))
            note("throttle", f"{label}: p99 / idle p99", ratio, "<= 2" if gentle else "")
    location.unlink()


def take_turns(
    live: Callable[[float], np.ndarray], worker: subprocess.Popen[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(idle, busy) latencies: the worker is stopped every other turn, so other load hits both."""
    idle, busy = list[np.ndarray](), list[np.ndarray]()
    for _ in range(TURNS):
        for number, times in ((signal.SIGCONT, busy), (signal.SIGSTOP, idle)):
            worker.send_signal(number)
            live(0.5)
            times.append(live(SECONDS))
    worker.send_signal(signal.SIGCONT)
    return np.concatenate(idle), np.concatenate(busy)


def report(note: Notes, label: str, times: np.ndarray) -> None:
    for share in (50, 99):
        note("throttle", f"{label}: p{share} ms", float(np.percentile(times, share)))


def searcher(upgrade: Upgrade, queries: np.ndarray) -> Callable[[float], np.ndarray]:
    def live(seconds: float) -> np.ndarray:
        times, until, number = [], time.perf_counter() + seconds, 0
        while (begun := time.perf_counter()) < until:
            upgrade.search(queries[number % len(queries)], space=NEW)
            times.append((time.perf_counter() - begun) * 1e3)
            number += 1
            time.sleep(PAUSE)
        return np.array(times)

    return live


def work(location: str, folder: Path, *, gentle: bool) -> None:
    """A worker of its own: real images and a real encoder, whose vectors are called new ones."""
    from midspan.encoders import build_encoder
    from midspan.gallery import Item
    from midspan.upgrade import Embedded

    encoder = build_encoder(backbone="small-resnet", dim=128, size=32, channels=3, seed=0).eval()
    paths = sorted(folder.glob("*.jpg"))
    with Gallery.open(location) as gallery:

        def embed(items: list[Item]) -> Embedded:
            chosen = [paths[int(item.id.rpartition("-")[2]) % len(paths)] for item in items]
            pixels = [np.asarray(Image.open(path).resize((32, 32))) for path in chosen]
            made = encoder.embed(np.stack(pixels), progress=False)
            return Embedded(Embeddings(np.array([i.id for i in items]), made.vectors, NEW))

        latency = live_latency(gallery) if gentle else None
        print("ready", flush=True)
        settings = Settings(growth=1) if gentle else Settings()
        Upgrade(gallery).run(embed, latency=latency, settings=settings)  # type: ignore[arg-type]


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]), gentle=sys.argv[3] == "1")
