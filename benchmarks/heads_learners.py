"""Divide & Conquer over frozen features: K = 1, 4 and 8 at equal steps, with the margin loss.

    python benchmarks/heads_learners.py --lists LISTS --flowers FOLDER [--sets cub,market,flowers]

K = 4 and 8 by the released schedule, in which a cluster's batch teaches all dims from 40 % of the
epochs on, and without that phase (all_dims_from 1). Appends to results/heads_learners.csv and
continues where it was stopped. The first row of a set is the features' own score, without training.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from heads_cell import CPU, Protocol, embed
from heads_data import BACKBONES, HeadsData, load

from midspan.config import build
from midspan.encoders import build_encoder
from midspan.evaluation.geometry import learner_correlation
from midspan.losses import LOSSES
from midspan.methods import METHODS
from midspan.spaces import FloatArray
from midspan.training.loop import TrainingTask, fit
from midspan.training.settings import TrainSettings

RESULTS = Path(__file__).parent / "results" / "heads_learners.csv"
DIM, STEPS = 128, 400
CLASSES, IMAGES = 16, 4  # of a batch
KEY = ["set", "learners", "all_dims_from", "lr", "seed"]
HEAD = [*KEY, "map", "recall1", "one_slice_recall1", "correlation"]
ARMS = ((1, ""), (4, 0.4), (4, 1.0), (8, 0.4), (8, 1.0))  # K, all_dims_from


def trained(data: HeadsData, *, learners: int, all_dims_from: float, lr: float, seed: int) -> Any:
    features = torch.from_numpy(data.features[BACKBONES[0]][data.train])
    labels = np.unique(data.labels[data.train], return_inverse=True)[1].astype(np.int64)
    torch.manual_seed(seed)
    encoder = build_encoder(
        backbone="vectors",
        dim=DIM,
        head="linear",
        seed=seed,
        sub_embeddings=learners,
        settings={"inputs": features.shape[1]},
    )
    loss = build(LOSSES, {"name": "margin"}, what="loss")
    loss.prepare(num_classes=int(labels.max()) + 1, dim=DIM)
    per_epoch = max(1, len(labels) // (CLASSES * IMAGES))
    settings = TrainSettings(
        epochs=max(8, round(STEPS / per_epoch)),
        sampler="balanced",
        classes_per_batch=CLASSES,
        images_per_class=IMAGES,
        lr=lr,
        weight_decay=Protocol().weight_decay,
        learners=learners,
        warm_up_learners=0.25,
        all_dims_from=all_dims_from,
        checkpoint_seconds=1e9,
    )
    task = TrainingTask(
        encoder=encoder,
        loss=loss,
        method=build(METHODS, {"name": "independent"}, what="method"),
        load=lambda rows: features[torch.from_numpy(rows)],
        labels=labels,
        old_vectors=None,
    )
    fit(task, settings=settings, seed=seed, device=CPU, show_progress=False)
    return encoder


def judged(data: HeadsData, query: FloatArray, gallery: FloatArray) -> tuple[float, float]:
    found = data.judge(query, gallery)
    return float(np.nanmean(found["map"])), float(np.nanmean(found["recall@1"]))


def cut(vectors: FloatArray, part: int, count: int) -> FloatArray:
    width = vectors.shape[1] // count
    piece = vectors[:, part * width : (part + 1) * width]
    length = np.linalg.norm(piece, axis=1, keepdims=True)
    unit: FloatArray = np.ascontiguousarray(piece / np.maximum(length, 1e-12))
    return unit


def main() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lists", type=Path, required=True)
    parser.add_argument("--flowers", type=Path)
    parser.add_argument("--sets", default="cub,market,flowers")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    done = set()
    if RESULTS.exists():
        with RESULTS.open(newline="", encoding="utf-8") as file:
            done = {tuple(row[name] for name in KEY) for row in csv.DictReader(file)}

    def add(*values: Any) -> None:
        fresh = not RESULTS.exists()
        with RESULTS.open("a", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            if fresh:
                table.writerow(HEAD)
            table.writerow(
                [round(v, 4) if i >= len(KEY) and v != "" else v for i, v in enumerate(values)]
            )
        print(*values, flush=True)

    for name in given.sets.split(","):
        data = load(name, lists=given.lists, flowers=given.flowers)
        features = data.features[BACKBONES[0]]
        if (name, "raw", "", "", "") not in done:
            unit = features / np.linalg.norm(features, axis=1, keepdims=True)
            add(
                name, "raw", "", "", "", *judged(data, unit[data.query], unit[data.gallery]), "", ""
            )
        for seed in range(given.seeds):
            for lr in (3e-4, 1e-3):
                for learners, from_then in ARMS:
                    if (name, str(learners), str(from_then), str(lr), str(seed)) in done:
                        continue
                    encoder = trained(
                        data,
                        learners=learners,
                        all_dims_from=float(from_then or 1.0),
                        lr=lr,
                        seed=seed,
                    )
                    query, gallery = (
                        embed(encoder, features[r]) for r in (data.query, data.gallery)
                    )
                    count = learners if learners > 1 else 4  # one learner, cut for comparison
                    alone = [
                        judged(data, cut(query, k, count), cut(gallery, k, count))[1]
                        for k in range(count)
                    ]
                    alike = learner_correlation(gallery, n_learners=count)
                    add(
                        *(name, learners, from_then, lr, seed),
                        *judged(data, query, gallery),
                        float(np.mean(alone)),
                        float(alike),
                    )


if __name__ == "__main__":
    main()
