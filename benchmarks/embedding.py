"""Images a second of `midspan embed` beside bare loops in torch, ONNX Runtime and OpenVINO.

    python benchmarks/embedding.py --images FOLDER --count 2000
    python benchmarks/embedding.py --images FOLDER --count 256 --encoders resnet50
    python benchmarks/embedding.py --images FOLDER --part allocator

Writes benchmarks/results/embedding.csv; rows of encoders that are not run stay as they are.

Every arm is a process of its own, and arms take turns: one round is each arm once. `seconds` is the
loop over the images, decoding included; `command` the whole process. All bare loops decode the next
batch while the network works, as `embed` does, so they differ by the runtime alone.
"before" is torch in batches of 64 with glibc as it is; it takes long and is run in the first round
alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 16
RESULTS = Path(__file__).parent / "results" / "embedding.csv"
ARMS = ("embed", "embed torch", "bare onnx", "bare openvino", "bare torch", "before")
ENCODERS = ("efficientnet-lite0", "efficientnet-lite2", "resnet50", "vit-s", "small-resnet")


@dataclass
class Row:
    encoder: str
    arm: str
    images: int
    rounds: int
    seconds: float  # median of the rounds
    command: float  # median of the whole process
    images_per_second: float
    of_best_bare: float
    cpu_ms_per_image: float  # least of the rounds; what other processes take does not count
    peak_mib: float


def make_encoder(name: str, folder: Path) -> Path:
    """An encoder folder; ResNet-50 and ViT-S have random weights, so nothing is downloaded."""
    from midspan.encoders import build_encoder

    if name.startswith("efficientnet"):
        return build_encoder(backbone=name, head="none").eval().save(folder / name)
    if name == "small-resnet":
        return build_encoder(backbone=name, seed=0).eval().save(folder / name)
    import torch

    from midspan.encoders.backbones.huggingface import _import_transformers

    hf = _import_transformers()
    torch.manual_seed(0)
    if name == "resnet50":
        model = hf.ResNetModel(hf.ResNetConfig())
    else:
        sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
        model = hf.ViTModel(hf.ViTConfig(**sizes))
    model.save_pretrained(folder / f"hf-{name}")
    made = build_encoder(backbone=f"hf:{folder / f'hf-{name}'}", head="none", name=name)
    return made.eval().save(folder / name)


# ---- one arm, in a process of its own -----------------------------------------------------------


def child(arm: str, encoder: Path, images: Path, count: int) -> None:
    from midspan.data import open_images

    pictures = open_images(images)[:count]
    if arm in ("embed", "embed torch", "before"):
        from midspan.encoders import OnnxEncoder, load_embedder

        loaded = load_embedder(encoder, runtime="auto" if arm == "embed" else "torch")
        if isinstance(loaded, OnnxEncoder):  # bare loops open theirs before the clock runs, too
            loaded.workers(len(pictures) // BATCH)
        started, cpu = time.perf_counter(), time.process_time()
        size = 64 if arm == "before" else None
        vectors = loaded.embed(pictures, progress=False, batch_size=size).vectors
    else:
        run, box = _bare(arm, encoder)
        started, cpu = time.perf_counter(), time.process_time()
        vectors = np.concatenate(list(map(run, _read_ahead(pictures, box))))
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak = _peak_mib()
    sample = np.asarray(vectors[:64], dtype=np.float64).tolist()
    told = {"seconds": seconds, "cpu": cpu, "images": len(vectors), "peak": peak}
    print(json.dumps({**told, "sample": sample}))


def _peak_mib() -> float:
    """Of this process since its exec; ru_maxrss would begin with what the parent had."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def _bare(arm: str, encoder: Path) -> tuple[Callable[[Any], Any], Any]:
    from midspan.encoders.files import read_encoder

    loaded = read_encoder(encoder)
    box = loaded.preprocessing
    if arm == "bare torch":
        import torch

        from midspan.encoders.allocator import keep_freed_memory

        keep_freed_memory()

        def in_torch(batch: Any) -> Any:
            with torch.inference_mode():
                return loaded(torch.from_numpy(batch)).numpy()

        return in_torch, box
    from midspan.encoders.runtimes.graph_cache import graph_path

    path = graph_path(loaded.fingerprint())
    if arm == "bare openvino":
        import openvino

        settings = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(str(path), "CPU", settings)
        return lambda batch: compiled({0: batch})[0].copy(), box
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, {"input": batch})[0], box


def _read_ahead(pictures: Any, box: Any) -> Iterator[Any]:
    def read(start: int) -> Any:
        rows = np.arange(start, min(start + BATCH, len(pictures)))
        return box.array(pictures.load(rows, box.image_size))

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(read, 0)
        for start in range(BATCH, len(pictures), BATCH):
            batch = coming.result()
            coming = pool.submit(read, start)
            yield batch
        yield coming.result()


# ---- the rounds ---------------------------------------------------------------------------------


def run_arm(arm: str, encoder: Path, images: Path, count: int) -> dict[str, Any]:
    environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE")
    if arm == "before":
        environment["GLIBC_TUNABLES"] = ""  # somebody has chosen: the allocator is left as it is
    command = [sys.executable, __file__, "--child", arm, str(encoder)]
    command += ["--images", str(images), "--count", str(count)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**told, "command": time.perf_counter() - started}


def measure(
    name: str, *, images: Path, count: int, rounds: int, arms: tuple[str, ...]
) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        encoder = make_encoder(name, Path(folder))
        from midspan.encoders import load_embedder

        loaded = load_embedder(encoder, runtime="onnx")  # export and compare before the clock runs
        from midspan.data import open_images

        loaded.embed(open_images(images)[:64], progress=False)
        chosen = load_embedder(encoder)  # and find out which runtime is faster
        chosen.embed(open_images(images)[: min(count, 1200)], progress=False)
        told: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
        for turn in range(rounds):
            for arm in arms:
                if turn == 0 or arm != "before":
                    told[arm].append(run_arm(arm, encoder, images, count))
    reference = np.array(told[arms[0]][0]["sample"])
    for arm in arms:
        apart = np.abs(np.array(told[arm][0]["sample"]) - reference).max()
        if not apart <= 2e-5:
            raise SystemExit(f"{name}: {arm} gives other vectors, {apart:.1e} apart")
    median = {arm: statistics.median(one["seconds"] for one in told[arm]) for arm in arms}
    best = min(seconds for arm, seconds in median.items() if arm.startswith("bare"))
    return [
        Row(
            encoder=name,
            arm=arm,
            images=told[arm][0]["images"],
            rounds=len(told[arm]),
            seconds=round(median[arm], 3),
            command=round(statistics.median(one["command"] for one in told[arm]), 3),
            images_per_second=round(told[arm][0]["images"] / median[arm], 1),
            of_best_bare=round(best / median[arm], 3),
            cpu_ms_per_image=round(min(1e3 * one["cpu"] / one["images"] for one in told[arm]), 2),
            peak_mib=round(max(one["peak"] for one in told[arm])),
        )
        for arm in arms
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=Path, required=True, help="folder of photographs")
    parser.add_argument(
        "--count", type=int, default=2000, help="of the photographs, the first ones"
    )
    parser.add_argument("--encoders", default=",".join(ENCODERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--part", choices=("all", "allocator"), default="all")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], Path(given.child[1]), given.images, given.count)
        return
    arms = tuple(given.arms.split(","))
    if given.part == "allocator":
        arms = ("embed torch", "before", "bare torch")
    rows = []
    for name in given.encoders.split(","):
        for row in measure(
            name, images=given.images, count=given.count, rounds=given.rounds, arms=arms
        ):
            print("  ".join(f"{key} {value}" for key, value in asdict(row).items()), flush=True)
            rows.append(row)
    write(given.out, rows)


def write(path: Path, rows: list[Row]) -> None:
    """Rows of encoders that were not run stay as they are."""
    kept = []
    if path.exists():
        with path.open(newline="") as file:
            run = {row.encoder for row in rows}
            kept = [row for row in csv.DictReader(file) if row["encoder"] not in run]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(Row.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *(asdict(row) for row in rows)])


if __name__ == "__main__":
    main()
