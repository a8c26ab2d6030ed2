"""Images/s of our loop against a bare PyTorch loop, and of embed() against a bare forward loop.

    python benchmarks/training.py            # writes benchmarks/results/training.csv

Same images, same network, same batch size, same optimiser, one process, the default number of
threads. Making the encoder and the old artifacts is not timed, our checkpoint at the end is. The
arms take turns and the best round of each counts, so that other load hits all of them alike.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from midspan.data import ImageSet, glyphs
from midspan.encoders import Encoder, build_encoder
from midspan.image_size import ImageSize
from midspan.labels import ClassNames
from midspan.losses.cosface import CosFace
from midspan.methods import Method, OldArtifacts
from midspan.methods.bct import BCT
from midspan.methods.independent import Independent
from midspan.spaces import Space
from midspan.training.loop import TrainingTask, fit
from midspan.training.settings import TrainSettings

BATCH, DIM, SCALE, MARGIN = 256, 128, 24.0, 0.2
EPOCHS = 3
RESULTS = Path(__file__).parent / "results" / "training.csv"


def new_encoder() -> Encoder:
    return build_encoder(backbone="small-resnet", dim=DIM, size=28, channels=1, seed=0)


def bare_loop(pixels: np.ndarray, labels: np.ndarray, classes: int) -> float:
    """What one writes in five minutes: index, normalise, forward, CosFace, backward, step."""
    encoder = new_encoder()
    mean, std = encoder.preprocessing.mean[0], encoder.preprocessing.std[0]
    encoder.train()
    weight = torch.nn.Parameter(torch.randn(classes, DIM) * 0.05)
    optimiser = torch.optim.AdamW([*encoder.parameters(), weight], lr=1e-3, weight_decay=0.05)
    images = torch.from_numpy(pixels)
    targets = torch.from_numpy(labels)
    started = time.perf_counter()
    epochs = (torch.randperm(len(images)).split(BATCH) for _ in range(EPOCHS))
    for rows in itertools.chain.from_iterable(epochs):
        batch = images[rows].permute(0, 3, 1, 2).float().div_(255).sub_(mean).div_(std)
        logits = SCALE * F.linear(F.normalize(encoder(batch)), F.normalize(weight))
        logits = logits - SCALE * MARGIN * F.one_hot(targets[rows], classes)
        loss = F.cross_entropy(logits, targets[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return time.perf_counter() - started


def our_loop(
    pixels: np.ndarray, labels: np.ndarray, classes: int, method: Method, folder: Path
) -> float:
    encoder = new_encoder()
    loss = CosFace(scale=SCALE, margin=MARGIN)
    loss.prepare(num_classes=classes, dim=DIM)
    vectors = torch.randn(len(labels), DIM)
    old = OldArtifacts.measure(
        space=Space("old", DIM),
        vectors=vectors,
        labels=torch.from_numpy(labels),
        num_classes=classes,
    )
    method.prepare(old=old, num_classes=classes, dim=DIM)
    checkpoint = folder / "checkpoint.safetensors"
    checkpoint.unlink(missing_ok=True)
    started = time.perf_counter()
    fit(
        TrainingTask(
            encoder=encoder,
            loss=loss,
            method=method,
            load=lambda rows: encoder.preprocessing.tensor(pixels[rows]),
            labels=labels,
            old_vectors=old.vectors if method.uses_old else None,
        ),
        settings=TrainSettings(epochs=EPOCHS, batch_size=BATCH, warmup_epochs=0.0),
        seed=0,
        device=torch.device("cpu"),
        checkpoint=checkpoint,
        show_progress=False,
    )
    return time.perf_counter() - started


def our_embed(encoder: Encoder, images: ImageSet) -> float:
    started = time.perf_counter()
    encoder.embed(images, batch_size=BATCH, progress=False)
    return time.perf_counter() - started


def bare_embed(encoder: Encoder, pixels: np.ndarray) -> float:
    started = time.perf_counter()
    mean, std = encoder.preprocessing.mean[0], encoder.preprocessing.std[0]
    encoder.eval()
    parts = []
    with torch.inference_mode():
        for start in range(0, len(pixels), BATCH):
            batch = torch.from_numpy(pixels[start : start + BATCH])
            batch = batch.permute(0, 3, 1, 2).float().div_(255).sub_(mean).div_(std)
            parts.append(F.normalize(encoder(batch)))
    torch.cat(parts).numpy()
    return time.perf_counter() - started


def best_rates(arms: dict[str, Callable[[], float]], images: int, rounds: int) -> dict[str, float]:
    seconds = {name: float("inf") for name in arms}
    for arm in arms.values():
        arm()  # warm-up
    for _ in range(rounds):
        for name, arm in arms.items():
            seconds[name] = min(seconds[name], arm())
    return {name: images / value for name, value in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=12_800)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()

    train = glyphs().train[: arguments.images]
    pixels = train.load(np.arange(len(train)), ImageSize(28, 28, 1))
    assert train.labels is not None
    names = ClassNames.of(train.labels)
    labels, classes = names.encode(train.labels), len(names)
    scratch = arguments.out.parent
    scratch.mkdir(parents=True, exist_ok=True)
    learning = best_rates(
        {
            "bare loop": lambda: bare_loop(pixels, labels, classes),
            "independent": lambda: our_loop(pixels, labels, classes, Independent(), scratch),
            "bct": lambda: our_loop(pixels, labels, classes, BCT(), scratch),
        },
        EPOCHS * len(pixels),
        arguments.rounds,
    )
    (scratch / "checkpoint.safetensors").unlink(missing_ok=True)
    encoder = new_encoder()
    embedding = best_rates(
        {
            "bare forward": lambda: bare_embed(encoder, pixels),
            "embed": lambda: our_embed(encoder, train),
        },
        len(pixels),
        arguments.rounds,
    )
    wanted = {"independent": 0.95, "bct": 0.90, "embed": 0.95}
    rows = []
    for rates, base in ((learning, "bare loop"), (embedding, "bare forward")):
        for name, rate in rates.items():
            rows.append(
                {
                    "arm": name,
                    "images_per_second": round(rate),
                    "ratio": round(rate / rates[base], 3),
                    "wanted": wanted.get(name, ""),
                    "threads": torch.get_num_threads(),
                    "cores": os.cpu_count(),
                }
            )
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
