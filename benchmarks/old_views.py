"""Old vectors of the view that is shown against cached ones: scores, and the cost of a step.

    python benchmarks/old_views.py scores --data gtsrb32.npz --out OUT
    python benchmarks/old_views.py cost --lists LISTS

`scores` trains each method with both on GTSRB (benchmarks/configs/gtsrb32.toml, augmented,
validation classes, extended-class) → results/old_views.csv, continuing where it was stopped. `cost`
is the processor time of a step of EfficientNet-lite0 at 128x64, old encoder of the same backbone,
arms taking turns → results/old_views_cost.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from midspan.config import build
from midspan.data import csv as image_list
from midspan.encoders import build_encoder
from midspan.losses import CosFace
from midspan.methods import METHODS, OldArtifacts
from midspan.spaces import Space
from midspan.training.augment import chain
from midspan.training.batch_loader import BatchRandom
from midspan.training.inputs import loader
from midspan.training.run import train
from midspan.training.settings import RunConfig
from midspan.training.views import ShownView

HERE = Path(__file__).parent
METHOD_NAMES = ("l2", "hot_refresh", "lce", "advbct", "trusted_matching")
AUGMENT = '["affine", "light"]'


def scores(given: argparse.Namespace) -> None:
    path = HERE / "results" / "old_views.csv"
    done = set()
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            done = {(row["method"], row["views"], row["seed"]) for row in csv.DictReader(file)}
    else:
        path.write_text("method,views,seed,old_self,self,cross,seconds\n", encoding="utf-8")

    def config(seed: int, part: str, *changes: str) -> RunConfig:
        return RunConfig.load(
            HERE / "configs" / "gtsrb32.toml",
            changes=[
                f"seed={seed}",
                f'data.path="{given.data.resolve()}"',
                'allocation.kind="extended-class"',
                f'allocation.part="{part}"',
                "train.epochs=12",
                f"train.augment={AUGMENT}",
                "evaluate.validation=true",
                *changes,
            ],
        )

    for seed in range(given.seeds):
        old = given.out / f"old-{seed}"
        train(config(seed, "old"), out=old, progress=False)
        for method in METHOD_NAMES:
            for views in ("shown", "cached"):
                if (method, views, str(seed)) in done:
                    continue
                changes = [
                    f'method.name="{method}"',
                    f'old.run="{old.resolve()}"',
                    f'old.views="{views}"',
                ]
                out = given.out / f"{method}-{views}-{seed}"
                started = time.process_time()
                found = train(config(seed + 1, "new", *changes), out=out, progress=False).scores
                values = [found["old_self"], found["self"], found["cross"]]
                line = [method, views, seed, *(round(v, 4) for v in values)]
                with path.open("a", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerow([*line, round(time.process_time() - started, 1)])
                print(*line, flush=True)


def cost(given: argparse.Namespace) -> None:
    images = image_list(given.lists / "market.csv")[np.arange(given.batch)]
    encoder = build_encoder(backbone="efficientnet-lite0", dim=128, size=(128, 64), seed=0)
    old = build_encoder(backbone="efficientnet-lite0", dim=128, size=(128, 64), seed=1)
    load = loader(encoder, images)
    view = ShownView(old, shown=encoder.preprocessing)
    rows = np.arange(given.batch)
    labels = torch.arange(given.batch) % 8
    cached = view(load(rows), rows, None)
    known = OldArtifacts.measure(
        space=Space("old", 128), vectors=cached, labels=labels, num_classes=8
    )
    loss = CosFace.for_classes(8, dim=128, scale=24.0, margin=0.2)
    method = build(METHODS, {"name": "trusted_matching"}, what="method")
    method.prepare(old=known, num_classes=8, dim=128)
    optimiser = torch.optim.AdamW([*encoder.parameters(), *loss.parameters()], lr=1e-4)
    augmentations = chain(("flip", "shift", "erase"))
    spent: dict[str, list[float]] = {"cached": [], "shown": []}
    encoder.train()
    for step in range(given.steps + 1):
        for arm, times in spent.items():
            started = time.process_time()
            shown = load(rows)
            rng = BatchRandom.whole(len(rows), torch.default_generator)
            for augmentation in augmentations:
                shown = augmentation(shown, rng)
            target = cached if arm == "cached" else view(shown, rows, None)
            vectors = encoder(shown)
            terms = method(vectors, labels, old=target, rows=torch.from_numpy(rows))
            total = loss.value(vectors, labels) + sum(terms.values())
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
            if step:  # the first pays for what is kept
                times.append(time.process_time() - started)
    medians: dict[str, Any] = {arm: float(np.median(times)) for arm, times in spent.items()}
    ratio = medians["shown"] / medians["cached"]
    with (HERE / "results" / "old_views_cost.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["batch", "steps", "cached_seconds", "shown_seconds", "ratio"])
        line = [given.batch, given.steps, *(round(v, 3) for v in medians.values()), round(ratio, 3)]
        table.writerow(line)
    print(*line)


def main() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("scores", "cost"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--lists", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=9)
    given = parser.parse_args()
    {"scores": scores, "cost": cost}[given.what](given)


if __name__ == "__main__":
    main()
