"""LCE's Table 5 on Market-1501: EfficientNet-lite0 fine-tuned, old on half of the identities.

    python benchmarks/market_finetune.py --lists LISTS --out OUT [--identities 200] [--epochs 4]

The old encoder learns from the first half of the identities, all others from all of them and start
from ImageNet weights as well. Self and cross by the official protocol. A run that was stopped goes
on; finished arms are in results/market_finetune.csv and are not repeated. LISTS:
benchmarks/image_lists.py.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from heads_cell import fitted_bridge, mapped

from midspan.data import csv as image_list
from midspan.encoders import load_embedder
from midspan.evaluation import evaluate
from midspan.spaces import Embeddings
from midspan.training.run import train
from midspan.training.settings import RunConfig

RESULTS = Path(__file__).parent / "results" / "market_finetune.csv"
SIZE = (128, 64)
# In order of what they settle, so that a run that is stopped early leaves a fair table
ARMS: dict[str, Mapping[str, Any]] = {
    "independent": {"name": "independent"},
    "lce": {"name": "lce"},
    "trusted_matching": {"name": "trusted_matching"},
    "hot_refresh": {"name": "hot_refresh"},
    "l2": {"name": "l2"},
    "bct": {"name": "bct"},
    "advbct": {"name": "advbct"},
    "trusted_matching, whitening 1": {"name": "trusted_matching", "whitening": 1.0},
    "trusted_matching, cached views": {"name": "trusted_matching"},
}


def subset(lists: Path, out: Path, *, identities: int) -> tuple[Path, Path]:
    """Lists of the training images: of the old encoder, and of the new ones."""
    with (lists / "market.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "train"]
    names = sorted({row["label"] for row in rows})[:identities]
    paths = []
    for part, kept in (("old", names[: len(names) // 2]), ("new", names)):
        path = out / f"{part}.csv"
        chosen = [row for row in rows if row["label"] in set(kept)]
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, fieldnames=["path", "label"], extrasaction="ignore")
            table.writeheader()
            table.writerows(chosen)
        print(f"{path}: {len(chosen)} images of {len(kept)} identities")
        paths.append(path)
    return paths[0], paths[1]


def run_file(data: Path, *, epochs: int, seed: int, **sections: Any) -> RunConfig:
    return RunConfig.from_dict(
        {
            "seed": seed,
            "data": {"name": "csv", "path": str(data)},
            "encoder": {"backbone": "efficientnet-lite0", "dim": 128, "size": list(SIZE)},
            "loss": {"name": "cosface", "scale": 24.0, "margin": 0.2},
            "train": {
                "epochs": epochs,
                "batch_size": 64,
                "lr": 1e-3,
                "backbone_lr": 3e-4,
                "augment": ["flip", "shift", "erase"],
            },
            **sections,
        }
    )


class Test:
    """Official queries and gallery, and what a pair of vectors scores on them."""

    def __init__(self, lists: Path, out: Path) -> None:
        self.images = image_list(lists / "market.csv")
        part, self.out = self.images.columns["part"], out
        labels = np.asarray(self.images.labels)
        names = np.array(self.images.class_names)[labels] if labels.dtype.kind in "iu" else labels
        self.query = np.flatnonzero(part == "query")
        self.gallery = np.flatnonzero((part == "bounding_box_test") & (names != "-1"))
        self.train = np.flatnonzero(part == "bounding_box_train")

    def vectors(self, run: Path, name: str, rows: Any) -> Embeddings:
        """Of a run's encoder, kept in a file."""
        path = run / f"{name}.npz"
        if not path.exists():
            load_embedder(run, runtime="auto").embed(self.images[rows]).save(path)
        found = Embeddings.load(path)
        return found.with_columns(
            {
                "labels": self.images[rows].labels,
                "cameras": self.images.columns["cameras"][rows],
            }
        )

    def judge(self, query: Embeddings, gallery: Embeddings) -> tuple[float, float]:
        found = evaluate(
            query,
            gallery,
            metrics=("map", "recall@1"),
            junk_column="cameras",
            exclude_same_id=False,
            direct=True,
        )
        return 100 * found.mean("map"), 100 * found.mean("recall@1")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lists", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--identities", type=int, default=751)
    parser.add_argument("--old-epochs", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arms", default=";".join(ARMS), help="by semicolon")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    test = Test(given.lists, given.out)
    old_data, new_data = subset(given.lists, given.out, identities=given.identities)
    setting = f"{given.identities} identities, {given.old_epochs} and {given.epochs} epochs"
    done = set()
    if RESULTS.exists():
        with RESULTS.open(newline="", encoding="utf-8") as file:
            done = {(row["setting"], row["seed"], row["arm"]) for row in csv.DictReader(file)}

    def add(arm: str, own: tuple[float, float], cross: tuple[float, float] | None) -> None:
        fresh = not RESULTS.exists()
        with RESULTS.open("a", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            if fresh:
                head = ["self_map", "self_rank1", "cross_map", "cross_rank1"]
                table.writerow(["setting", "seed", "arm", *head])
            values = [*own, *(cross or ("", ""))]
            shown = [round(value, 2) if value != "" else "" for value in values]
            table.writerow([setting, given.seed, arm, *shown])
        print(arm, own, cross, flush=True)

    old_run = given.out / f"old-{given.identities}-{given.seed}"
    train(run_file(old_data, epochs=given.old_epochs, seed=given.seed), out=old_run)
    old_query = test.vectors(old_run, "query", test.query)
    old_gallery = test.vectors(old_run, "gallery", test.gallery)
    if (setting, str(given.seed), "old") not in done:
        add("old", test.judge(old_query, old_gallery), None)
    asked = {name.strip() for name in given.arms.split(";")}
    for arm in (name for name in ARMS if name in asked):
        if (setting, str(given.seed), arm) in done:
            continue
        sections: dict[str, Any] = {"method": ARMS[arm]}
        if arm != "independent":
            views = "cached" if "cached" in arm else "shown"
            sections["old"] = {"run": str(old_run), "views": views}
        run = given.out / f"{arm.replace(', ', '-')}-{given.identities}-{given.seed}"
        train(run_file(new_data, epochs=given.epochs, seed=given.seed + 1, **sections), out=run)
        query = test.vectors(run, "query", test.query)
        gallery = test.vectors(run, "gallery", test.gallery)
        own = test.judge(query, gallery)
        add(arm, own, test.judge(query, old_gallery))
        if arm == "independent":
            images = image_list(new_data)
            both = [load_embedder(r, runtime="auto").embed(images) for r in (run, old_run)]
            bridge = fitted_bridge("ridge", both[0].vectors, both[1].vectors)
            vectors = mapped(bridge, query.vectors)
            turned = Embeddings(query.ids, vectors, old_query.space, query.columns)
            add("independent + ridge", own, test.judge(turned, old_gallery))


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    main()
