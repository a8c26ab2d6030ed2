"""How the encoders and schedules of benchmarks/methods_table.py were found, on validation classes.

    python benchmarks/tune_schedule.py --data DIR     # writes benchmarks/results/tune_schedule.csv

DIR holds omniglot32.npz, flowers32.npz, glyphs28.npz and gtsrb32.npz. The test classes are thrown
away before anything is read. Of Omniglot, six whole alphabets of the training part are held out,
as the test alphabets are: letters of known alphabets promise too much. Of the others, a fifth of
the training classes. One seed; finished runs are kept in --runs.

What it shows: the criterion (cross above old self) is the easier the further the independent
encoder is above the old one. A short schedule of a good encoder has that distance, as the change of
a model in practice has it; many epochs of a weak one close it. But not too short: with batches of
128 the old encoder of extended-data (964 classes, six images each) has learnt next to nothing.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.methods_table import SETS

from midspan.training.bench import BenchSettings, make_plan, read_settings
from midspan.training.bench.pool import BenchJob
from midspan.training.bench.rows import make_rows
from midspan.training.bench.worker import work

RESULTS = Path(__file__).parent / "results" / "tune_schedule.csv"
ALPHABETS = 6  # of 30
NUMBERS = ("old_self", "new_self", "upper_self", "cross", "p_1")
Tried = tuple[str, dict[str, Any]]

FEW: tuple[Tried, ...] = (("bct", {"weight": 6.0}), ("unibct", {"weight": 3.0}), ("advbct", {}))
WEIGHTS: tuple[Tried, ...] = (
    ("bct", {}),
    ("bct", {"weight": 6.0}),
    ("bct", {"weight": 10.0}),
    ("bct", {"classifier": "centres"}),
    ("bct", {"classifier": "centres", "weight": 6.0}),
    ("bct", {"classifier": "centres", "weight": 6.0, "scale": 12.0}),
    ("bct", {"classifier": "distilled", "weight": 6.0}),
    ("lce", {}),
    ("lce", {"align": 30.0, "boundary": 3.0}),
    ("lce", {"align": 30.0, "boundary": 30.0}),
    ("hot_refresh", {}),
    ("hot_refresh", {"weight": 3.0}),
    ("hot_refresh", {"weight": 10.0}),
    ("unibct", {}),
    ("unibct", {"weight": 3.0}),
    ("unibct", {"weight": 10.0}),
    ("mixbct", {}),
    ("mixbct", {"share": 0.7}),
    ("l2", {}),
    ("l2", {"weight": 50.0}),
    ("advbct", {}),
    ("advbct", {"p2s_weight": 100.0}),
    ("simplex", {}),
)
CHOSEN: tuple[Tried, ...] = (
    *FEW,
    ("lce", {}),
    ("hot_refresh", {}),
    ("mixbct", {}),
    ("advbct", {"threshold": 0.0}),
    ("advbct", {"threshold": 0.8}),
    ("advbct", {"p2s_weight": 8.0}),
    ("advbct", {"p2s_weight": 8.0, "threshold": 0.8}),
    ("advbct", {"p2s_weight": 25.0, "classes": "known"}),
    ("advbct", {"adversarial_weight": 0.2}),
    ("advbct", {"p2s_weight": 60.0, "adversarial_weight": 0.2}),
)
STEPS: tuple[Tried, ...] = (("bct", {}), ("advbct", {}), ("advbct", {"threshold": 0.6}))
OTHERS: tuple[Tried, ...] = (("bct", {}), ("lce", {}), ("advbct", {}))
HEAVIER: tuple[Tried, ...] = (
    ("bct", {}),
    ("bct", {"weight": 30.0}),
    ("unibct", {"weight": 30.0}),
    ("unibct", {"weight": 100.0}),
    ("lce", {"align": 100.0, "boundary": 30.0}),
    ("lce", {"align": 300.0}),
    ("advbct", {"p2s_weight": 150.0}),
    ("hot_refresh", {}),
)
MOST: tuple[Tried, ...] = (*OTHERS, ("unibct", {}), ("hot_refresh", {}))


@dataclass(frozen=True)
class Schedule:
    set: str
    backbone: str
    size: int  # px
    epochs: int
    lr: float
    tried: tuple[Tried, ...]
    batch_size: int = 128
    case: str = "extended-class"

    @property
    def folder(self) -> str:
        network = self.backbone.replace(",width=", "")
        return f"{self.case}-{self.set}-{network}-{self.size}px-{self.epochs}-{self.batch_size}"


SCHEDULES = (
    Schedule("omniglot32", "small-cnn,width=16", 16, 8, 5e-3, WEIGHTS),
    Schedule("omniglot32", "small-cnn,width=16", 16, 4, 5e-3, FEW),
    Schedule("omniglot32", "small-cnn,width=24", 16, 8, 5e-3, FEW),
    Schedule("omniglot32", "small-resnet,width=16", 32, 5, 2e-3, CHOSEN),
    Schedule("omniglot32", "small-resnet,width=8", 32, 5, 3e-3, FEW),
    Schedule("omniglot32", "small-resnet,width=16", 32, 5, 2e-3, STEPS, 64),
    Schedule("omniglot32", "small-resnet,width=16", 32, 5, 2e-3, OTHERS[:2], 64, "extended-data"),
    Schedule("glyphs28", "small-resnet,width=16", 28, 3, 2e-3, OTHERS[:1]),
    Schedule("glyphs28", "small-resnet,width=16", 28, 2, 2e-3, OTHERS),
    Schedule("flowers32", "small-resnet,width=16", 32, 8, 2e-3, OTHERS),
    Schedule("flowers32", "small-resnet,width=16", 32, 30, 2e-3, OTHERS[:1], 64),
    Schedule("flowers32", "small-cnn,width=16", 32, 12, 5e-3, HEAVIER),
    Schedule("gtsrb32", "small-resnet,width=16", 32, 8, 2e-3, OTHERS[:1]),
    Schedule("gtsrb32", "small-resnet,width=16", 32, 8, 2e-3, MOST, 64),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, default=Path("runs/tune-schedule"))
    parser.add_argument("--only", choices=["omniglot32", "glyphs28", "flowers32", "gtsrb32"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = []
    for schedule in SCHEDULES:
        if given.only in (None, schedule.set):
            rows += [measure(schedule, one, given.data, given.runs) for one in schedule.tried]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def measure(schedule: Schedule, tried: Tried, data: Path, runs: Path) -> dict[str, Any]:
    method, settings = tried
    letters = schedule.set == "omniglot32"
    images = data / f"{schedule.set}.npz"
    augment = f"train.augment={[*SETS[schedule.set].augment]}"
    changes = [
        augment,
        f"train.batch_size={schedule.batch_size}",
        f"train.lr={schedule.lr}",
        f"encoder.size={schedule.size}",
    ]
    base, _ = read_settings(None, changes)
    wanted = BenchSettings(
        data=(str(alphabets(images, runs) if letters else images),),
        allocations=(schedule.case,),
        methods=(method,),
        backbone=schedule.backbone,
        epochs=schedule.epochs,
        seeds=1,
        validation=not letters,  # the letters' own file has validation alphabets for test classes
        exclude_column="track" if schedule.set == "gtsrb32" else None,
        base=base,
        methods_of={method: settings} if settings else {},
    )
    name = "-".join([method, *(f"{key}={value}" for key, value in settings.items())])
    place = runs / schedule.folder / name
    share(runs / schedule.folder / "shared", place, schedule)
    column = wanted.exclude_column
    jobs = [
        BenchJob.of(one, place, metric="map", exclude_column=column) for one in make_plan(wanted)
    ]
    for job in jobs:
        answer = {} if job.finished else work(job.task())
        if "reason" in answer:
            raise SystemExit(f"{schedule.folder} {name} failed: {answer['reason']}")
    (row,) = [one for one in make_rows(jobs) if one["method"] == method]
    found = {
        "set": schedule.set,
        "backbone": schedule.backbone,
        "px": schedule.size,
        "epochs": schedule.epochs,
        "lr": schedule.lr,
        "batch": schedule.batch_size,
        "case": schedule.case,
        "method": method,
        "settings": " ".join(f"{key}={value}" for key, value in settings.items()),
        **{number: round(row[number], 4) for number in NUMBERS},
        "cross_to_old_self": round(row["cross"] / row["old_self"], 3),
    }
    print(*found.values(), flush=True)
    return found


def share(shared: Path, place: Path, schedule: Schedule) -> None:
    """Old encoder and upper bound do not depend on the method: trained once, then linked."""
    for part in (schedule.case.replace("extended", "old"), f"{schedule.case}/independent"):
        own, common = place / "runs" / schedule.set / part, shared / part
        common.mkdir(parents=True, exist_ok=True)
        own.parent.mkdir(parents=True, exist_ok=True)
        if not own.exists():
            own.symlink_to(common.resolve(), target_is_directory=True)


def alphabets(path: Path, folder: Path) -> Path:
    """The training part alone, with six of its alphabets as its test classes."""
    target = folder / "data" / path.name
    if not target.exists():
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
        train = columns["split"] == 0
        of_class = np.array([str(name).split("/")[0] for name in columns["class_name"]])
        alphabet = of_class[columns["labels"]][train]
        held = np.random.default_rng(0).permutation(np.unique(alphabet))[:ALPHABETS]
        part = {
            name: values[train] if len(values) == len(train) else values
            for name, values in columns.items()
        }
        part["split"] = np.isin(alphabet, held).astype(columns["split"].dtype)
        target.parent.mkdir(parents=True, exist_ok=True)
        np.savez(target, **part)
    return target


if __name__ == "__main__":
    main()
