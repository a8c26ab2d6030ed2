"""Step time and memory of a classifier with very many classes: whole, in parts, and sampled.

    python benchmarks/partial_fc.py            # writes benchmarks/results/partial_fc.csv

CosFace on random vectors, AdamW, float32, on the CPU: logits, loss, backward and the update of the
class rows, without an encoder. Each arm runs in processes of its own. `step_mb` is how far the
resident memory of a process rises inside of a step above what it holds between steps (class rows
and the optimiser's state, `held_mb`); both are of the largest process. Linux only.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing.spawn import start_processes

from midspan.losses.cosface import CosFace
from midspan.losses.partial_fc import PartialFC
from midspan.training.class_weights import ClassWeightOptimiser
from midspan.training.settings import TrainSettings

RESULTS = Path(__file__).parent / "results" / "partial_fc.csv"
MB = 2**20


@dataclass(frozen=True)
class Arm:
    classes: int
    classifier: str  # "whole", "parts"
    rate: float
    processes: int


@dataclass(frozen=True)
class Size:
    dim: int
    batch: int
    steps: int


def whole(classes: int, dim: int) -> Callable[[Tensor, Tensor], None]:
    """The rows as a parameter like any other."""
    loss = CosFace()
    loss.prepare(num_classes=classes, dim=dim)
    optimiser = torch.optim.AdamW(loss.parameters(), lr=1e-3, weight_decay=0.05)

    def step(vectors: Tensor, labels: Tensor) -> None:
        value = loss(vectors=vectors, logits=loss.logits(vectors), labels=labels)
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def in_parts(classes: int, dim: int, *, rate: float) -> Callable[[Tensor, Tensor], None]:
    loss = PartialFC(CosFace(), rate=rate)
    loss.prepare(num_classes=classes, dim=dim)
    optimiser = ClassWeightOptimiser(loss, TrainSettings())

    def step(vectors: Tensor, labels: Tensor) -> None:
        loss(vectors=vectors, logits=None, labels=labels).backward()
        optimiser.step(rate=1e-3)

    return step


def measure(rank: int, arm: Arm, size: Size, folder: str) -> None:
    if arm.processes > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meeting",
            rank=rank,
            world_size=arm.processes,
            timeout=timedelta(minutes=10),
        )
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // arm.processes))
    torch.manual_seed(0)
    empty = memory("VmRSS")
    step = (
        whole(arm.classes, size.dim)
        if arm.classifier == "whole"
        else in_parts(arm.classes, size.dim, rate=arm.rate)
    )
    seconds = []
    for number in range(1 + size.steps):
        torch.manual_seed(number)  # the same batch and sample in all processes
        vectors = torch.randn(size.batch, size.dim, requires_grad=True)
        labels = torch.randint(arm.classes, (size.batch,))
        if number == 1:  # after a warm-up the state is there
            ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is free counts as free
            held = memory("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        started = time.perf_counter()
        step(vectors, labels)
        seconds.append(time.perf_counter() - started)
    row = {
        **asdict(arm),
        **asdict(size),
        "step_ms": round(1000 * statistics.median(seconds[1:]), 1),
        "step_mb": round(memory("VmHWM") - held),
        "held_mb": round(held - empty),
    }
    torch.save(row, f"{folder}/{rank}.pt")
    if arm.processes > 1:
        dist.destroy_process_group()


def memory(kind: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == kind:
            return int(value.split()[0]) * 1024 / MB
    raise RuntimeError(f"no {kind} in /proc/self/status: this runs on Linux")


def run(arm: Arm, size: Size) -> dict[str, float | str]:
    with tempfile.TemporaryDirectory() as folder:
        start_processes(
            measure, args=(arm, size, folder), nprocs=arm.processes, start_method="spawn"
        )
        rows = [torch.load(f"{folder}/{rank}.pt") for rank in range(arm.processes)]
    return {**rows[0], **{key: max(row[key] for row in rows) for key in ("step_mb", "held_mb")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    size = Size(arguments.dim, arguments.batch, arguments.steps)
    rows = []
    for classes in arguments.classes:
        for arm in (
            Arm(classes, "whole", 1.0, 1),
            Arm(classes, "parts", 1.0, 1),
            Arm(classes, "parts", 0.1, 1),
            Arm(classes, "parts", 1.0, 2),
            Arm(classes, "parts", 0.1, 2),
        ):
            rows.append(run(arm, size))
            print(rows[-1], flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
