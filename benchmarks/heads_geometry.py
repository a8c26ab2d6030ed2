"""Backfill area and LCE's Table 6 over frozen features: extended-class, one split and seed.

    python benchmarks/heads_geometry.py --lists LISTS --flowers FOLDER [--sets cub,flowers]

Every method with the setting that the trial took for this cell in results/heads.csv. area: mAP of
new queries while the gallery gets its new vectors in random order, area under the curve (21
points). intra: mean squared distance of unit vectors to their class mean, on test classes; apart:
mean squared distance of the new and the old vector of one image. Writes results/heads_geometry.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from heads import RESULTS, TUNED_ON, Cell, Runner, Table, chosen
from heads_cell import allocation_rows, embed, train_old
from heads_data import HeadsData, load
from heads_grid import PROTOCOL, Candidate

from midspan.evaluation.curves import backfill_curve
from midspan.evaluation.geometry import intra_class_distance, pairwise_distance
from midspan.spaces import Embeddings, FloatArray, Space

HEAD = ["set", "method", "chosen", "self", "cross", "area", "intra", "apart"]
SPLIT, SEED = 0, 0


def measured(data: HeadsData, old: FloatArray, new: FloatArray) -> list[float]:
    def items(vectors: FloatArray) -> Embeddings:
        ids, labels = data.query.astype(np.str_), data.labels[data.query]
        return Embeddings(ids, vectors, Space("heads", vectors.shape[1]), {"labels": labels})

    order = np.random.default_rng(SEED).permutation(len(old))
    curve = backfill_curve(
        query=items(new), gallery_old=items(old), gallery_new=items(new), order=order, direct=True
    )
    labels = data.labels[data.query]
    first, last = float(curve.values[0]), float(curve.values[-1])
    intra, apart = intra_class_distance(new, labels), pairwise_distance(old, new)
    return [round(v, 4) for v in (last, first, curve.area_trapezoid, intra, apart)]


def of_set(data: HeadsData) -> Iterator[list[Any]]:
    table = Table(RESULTS / "heads.csv")
    runner, cell = Runner(table, per_query=None), Cell(data, "extended-class", SPLIT, SEED)
    learnt = allocation_rows(data, family=cell.family, split=SPLIT)
    old = train_old(data, learnt, protocol=PROTOCOL, seed=SEED)
    features = data.features[old.backbone][data.query]
    before = embed(old.encoder, features)
    yield [data.name, "old", "", *measured(data, before, before)]
    settings = {name: chosen(name) for name in TUNED_ON}
    arms = {"independent": ("", Candidate({"name": "independent"}))}
    for method in settings["cub"]:
        tuned = table.done[cell.key(method)]["chosen"] or "cub"
        arms[method] = (tuned, settings[tuned][method])
    for method, (tuned, candidate) in arms.items():
        encoder = runner.train(data, cell, old, candidate).encoder
        yield [data.name, method, tuned, *measured(data, before, embed(encoder, features))]


def main() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lists", type=Path, required=True)
    parser.add_argument("--flowers", type=Path)
    parser.add_argument("--sets", default="cub,flowers", help="of those without cameras")
    given = parser.parse_args()
    with (RESULTS / "heads_geometry.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(HEAD)
        for name in given.sets.split(","):
            for row in of_set(load(name, lists=given.lists, flowers=given.flowers)):
                table.writerow(row)
                print(*row, flush=True)


if __name__ == "__main__":
    main()
