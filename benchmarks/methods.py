"""Step time of every method relative to `independent`, in one process.

    OMP_NUM_THREADS=1 python benchmarks/methods.py      # writes benchmarks/results/methods.csv

small-resnet, 128 dims, batch 256, 1000 classes of 32 px images, AdamW, the step as the loop does
it: encode, recognition loss, the method's terms, backward, clip, optimiser. The arms take turns,
one step at a time and in changing order, so that other load hits all of them alike. A ratio is the
median over the turns of this arm's step / independent's step of the same turn, once by the clock
and once in CPU time, which other programs on the machine disturb less; with one thread the two
mean the same. Milliseconds are medians of CPU time.

`unibct (refinement)` is the mean step of the epoch in which the prototypes are refined: a plain
step plus the refinement divided by the steps of an epoch of 1000 classes × 20 images (the size of
Omniglot's training part).
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from midspan.config import build
from midspan.encoders import build_encoder
from midspan.losses.cosface import CosFace
from midspan.methods import METHODS, Method, OldArtifacts, OldClassifier
from midspan.methods.unibct import UniBCT
from midspan.spaces import Space
from midspan.training.loop import make_optimiser
from midspan.training.settings import TrainSettings
from midspan.training.step import Step, StepInput

BATCH, DIM, SIZE, CLASSES, IMAGES = 256, 128, 32, 1000, 20
SETTINGS = TrainSettings(batch_size=BATCH)
RESULTS = Path(__file__).parent / "results" / "methods.csv"
REFINEMENT = "unibct (refinement)"

# Settings without which an arm cannot run at this size: 1000 vertices do not fit in 128 dims.
EXTRA = {"simplex": {"projected": True}}
WANTED = {"advbct": 1.25, REFINEMENT: 1.25}
ALL = 1.15


@dataclass(frozen=True)
class Seconds:
    clock: float
    cpu: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(time.perf_counter(), time.process_time())

    def since(self) -> Seconds:
        now = Seconds.now()
        return Seconds(now.clock - self.clock, now.cpu - self.cpu)


@dataclass(frozen=True)
class Arm:
    """One method with an encoder, a loss and an optimiser of its own."""

    step: Step
    optimiser: Optimizer

    @classmethod
    def make(cls, name: str, old: OldArtifacts) -> Arm:
        torch.manual_seed(0)
        encoder = build_encoder(backbone="small-resnet", dim=DIM, size=SIZE, channels=1, seed=0)
        loss = CosFace(scale=24.0, margin=0.2)
        loss.prepare(num_classes=CLASSES, dim=DIM)
        method: Method = build(METHODS, {"name": name, **EXTRA.get(name, {})}, what="method")
        method.prepare(old=old if method.uses_old else None, num_classes=CLASSES, dim=DIM)
        rows = method.fixed_rows()
        if rows is not None:
            loss.fix_rows(rows)
        step = Step(encoder=encoder, loss=loss, method=method).train()
        return cls(step, make_optimiser(step, SETTINGS))

    def seconds(self, images: Tensor, rows: Tensor, old: OldArtifacts) -> Seconds:
        """One step, as in training/loop.py; halfway through training."""
        started = Seconds.now()
        terms = self.step(
            StepInput(
                images=images,
                labels=old.labels[rows],
                rows=rows,
                old=old.vectors[rows] if self.step.method.uses_old else None,
                epoch=10,
                progress=0.5,
            )
        )
        total = torch.stack(list(terms.values())).sum()
        self.optimiser.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.step.parameters(), SETTINGS.clip)
        self.optimiser.step()
        return started.since()


def old_artifacts() -> OldArtifacts:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(CLASSES * IMAGES) % CLASSES
    spots = torch.randn(CLASSES, DIM, generator=generator)
    vectors = spots[labels] + torch.randn(len(labels), DIM, generator=generator)
    known = CLASSES * 3 // 10  # the old encoder knew 30 % of the classes, as in extended-class
    label_map = torch.arange(CLASSES).where(torch.arange(CLASSES) < known, -1)
    return OldArtifacts.measure(
        space=Space("old", DIM),
        vectors=vectors,
        labels=labels,
        num_classes=CLASSES,
        classifier=OldClassifier(rows=spots[:known], bias=None, scale=24.0, normalised=True),
        label_map=label_map,
    )


def measure(turns: int) -> tuple[dict[str, list[Seconds]], Seconds]:
    """Seconds of each arm in each turn, and of one refinement of all prototypes."""
    old = old_artifacts()
    arms = {name: Arm.make(name, old) for name in METHODS}
    generator = torch.Generator().manual_seed(2)
    pixels = torch.rand(CLASSES * IMAGES, 1, SIZE, SIZE, generator=generator)
    shuffled = random.Random(0)
    seconds: dict[str, list[Seconds]] = {name: [] for name in arms}
    for turn in range(-3, turns):  # three to warm up
        rows = torch.randperm(len(pixels), generator=generator)[:BATCH]
        images = pixels[rows]
        for name in shuffled.sample(list(arms), len(arms)):
            taken = arms[name].seconds(images, rows, old)
            if turn >= 0:
                seconds[name].append(taken)
    refining = arms["unibct"].step.method
    assert isinstance(refining, UniBCT)
    refining.bank.copy_(old.vectors)
    refining.seen.fill_(True)
    refinements = []
    for _ in range(5):
        started = Seconds.now()
        refining.refine()
        refinements.append(started.since())
    return seconds, sorted(refinements, key=lambda s: s.cpu)[2]


def table(seconds: dict[str, list[Seconds]], refinement: Seconds) -> list[dict[str, object]]:
    steps = CLASSES * IMAGES / BATCH
    seconds[REFINEMENT] = [
        Seconds(s.clock + refinement.clock / steps, s.cpu + refinement.cpu / steps)
        for s in seconds["unibct"]
    ]
    base = seconds["independent"]
    rows = []
    for name, taken in seconds.items():
        pairs = list(zip(taken, base, strict=True))
        rows.append(
            {
                "method": name,
                "ms_per_step": round(1000 * statistics.median(s.cpu for s in taken), 1),
                "ratio": round(statistics.median(s.clock / b.clock for s, b in pairs), 3),
                "cpu_ratio": round(statistics.median(s.cpu / b.cpu for s, b in pairs), 3),
                "wanted": WANTED.get(name, ALL),
                "turns": len(taken),
                "threads": torch.get_num_threads(),
                "cores": os.cpu_count(),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = table(*measure(arguments.turns))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
