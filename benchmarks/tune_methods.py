"""How the methods' defaults were found: on validation classes cut from the training classes.

    python benchmarks/tune_methods.py --data DIR        # writes benchmarks/results/tune_methods.csv

DIR holds omniglot32.npz and flowers32.npz. The test classes are thrown away before anything is
read; of the training classes, a fixed random part is used at 16 px (a run costs seconds),
a fifth of it held out to judge by, and 30 % of the rest known to the old encoder (extended-class).
Each method has a small grid around its published weights; one seed. `--set flowers32` is the second
look. Rows of candidates that were measured before are kept: run it again to go on.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np

from midspan.data import npz, save_npz
from midspan.training.bench import BenchSettings, make_plan, read_settings
from midspan.training.bench.pool import BenchJob
from midspan.training.bench.rows import make_rows
from midspan.training.bench.worker import work

RESULTS = Path(__file__).parent / "results" / "tune_methods.csv"
CLASSES = {"omniglot32": 600, "flowers32": 71}
EPOCHS = {"omniglot32": 12, "flowers32": 20}
SCHEDULE = "small-cnn width 16, batch 128, lr 5e-3"
AUGMENT = {"omniglot32": ["affine"], "flowers32": ["affine", "flip", "light"]}
GRID: dict[str, list[dict[str, Any]]] = {
    "advbct": [
        {"p2s_weight": 60.0},
        {"p2s_weight": 60.0, "threshold": 0.2},
        {"p2s_weight": 25.0, "adversarial_weight": 0.0},
        {"reduction": "sum", "p2s_weight": 0.2},
        {"reduction": "sum", "p2s_weight": 0.1},
        {"reduction": "sum", "p2s_weight": 0.2, "adversarial_weight": 0.0},
        {"p2s_weight": 10.0},
        {},
    ],
    "lce": [
        {"align": 10.0, "boundary": 3.0},
        {"align": 10.0, "boundary": 10.0},
        {"align": 30.0, "boundary": 3.0},
        {"align": 1.0, "boundary": 1.0},
    ],
    "unibct": [
        {"scale": 12.0, "margin": 0.0},
        {"weight": 3.0, "scale": 12.0, "margin": 0.0},
        {"scale": 30.0, "margin": 0.3},
    ],
    "bct": [
        {"classifier": "centres", "weight": 3.0},
        {"classifier": "centres", "weight": 1.0},
        {"classifier": "centres", "scale": 12.0, "weight": 2.0},
        {"classifier": "synthesised", "weight": 1.0},
    ],
    "hot_refresh": [{"temperature": 0.1}, {"temperature": 0.05}],
    "mixbct": [{"share": 0.3}, {"share": 0.5}],
    "simplex": [{}],
    "l2": [{"weight": 10.0}, {"weight": 3.0}],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/tune-methods"))
    parser.add_argument("--methods", default=",".join(GRID))
    parser.add_argument("--set", default="omniglot32", choices=list(CLASSES))
    parser.add_argument("--only", type=int, help="this place of each grid alone")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    images = training_part(given.data / f"{given.set}.npz", CLASSES[given.set], given.runs)
    candidates = [
        (method, settings)
        for method in given.methods.split(",")
        for settings in (GRID[method] if given.only is None else GRID[method][given.only :][:1])
    ]
    for method, settings in candidates:
        changes = [f"train.augment={AUGMENT[given.set]}", "train.batch_size=128"]
        changes += ["train.lr=5e-3", "encoder.size=16"]
        base, _ = read_settings(None, changes)
        wanted = BenchSettings(
            data=(str(images),),
            allocations=("extended-class",),
            methods=(method,),
            backbone="small-cnn,width=16",
            epochs=EPOCHS[given.set],
            seeds=1,
            validation=True,
            base=base,
            methods_of={method: settings},
        )
        # A folder for each candidate; old and independent encoders are shared by links.
        place = given.runs / given.set / label(method, settings).replace(" ", "_")
        share(given.runs / given.set / "shared", place, images.stem)
        jobs = [
            BenchJob.of(one, place, metric="map", exclude_column=None) for one in make_plan(wanted)
        ]
        for job in jobs:
            answer = {} if job.finished else work(job.task())  # here: a process costs more
            if "reason" in answer:
                print(label(method, settings), "failed:", answer["reason"], flush=True)
        schedule = f"{CLASSES[given.set]} classes, {SCHEDULE}, {EPOCHS[given.set]} epochs"
        rows = [
            {"set": given.set, "schedule": schedule, **row(one, method, settings)}
            for one in make_rows(jobs)
        ]
        write(rows, given.out)


def training_part(path: Path, classes: int, folder: Path) -> Path:
    """An .npz of some training classes alone; the file keeps its name."""
    target = folder / "data" / path.name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        train = npz(path).train
        assert train.labels is not None
        present = set(train.labels.tolist())
        known = np.array([name for name in train.class_names if name in present])
        chosen = np.random.default_rng(0).permutation(known)[:classes]
        part = train[np.isin(train.labels, chosen)]
        save_npz(part, target)
    return target


def share(shared: Path, place: Path, name: str) -> None:
    """Old encoder and upper bound do not depend on the method: trained once, then linked."""
    for part in ("old-class", "extended-class/independent"):
        own, common = place / "runs" / name / part, shared / part
        common.mkdir(parents=True, exist_ok=True)
        own.parent.mkdir(parents=True, exist_ok=True)
        if not own.exists():
            own.symlink_to(common.resolve(), target_is_directory=True)


def label(method: str, settings: dict[str, Any]) -> str:
    return " ".join([method, *(f"{key}={value}" for key, value in settings.items())])


def row(measured: Any, method: str, settings: dict[str, Any]) -> dict[str, Any]:
    own = measured["method"] == method
    numbers = ("old_self", "new_self", "upper_self", "cross", "p_up", "p_comp", "p_1")
    return {
        "candidate": label(method, settings) if own else measured["method"],
        **{name: round(measured[name], 4) for name in numbers},
        "negative_flips": round(measured["negative_flips"], 4),
        "seconds": measured["seconds"],
    }


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Replace rows of the same candidate, keep the others."""
    kept: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            kept = list(csv.DictReader(file))
    names = ("set", "schedule", "candidate")
    fresh = {tuple(one[name] for name in names) for one in rows}
    everything = [one for one in kept if tuple(one[name] for name in names) not in fresh] + rows
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(everything)
    print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
