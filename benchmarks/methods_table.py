"""The table of all methods: four data sets, two allocations, by one protocol.

    python benchmarks/methods_table.py --data DIR --out DIR [--jobs 2] [--only omniglot32]

DIR holds omniglot32.npz, gtsrb32.npz, flowers32.npz and glyphs28.npz. Each set is one
`midspan bench` of its own folder below --out; a second start goes on. All are joined on one page,
and the rows of these sets are replaced in benchmarks/results/methods_*.csv. `--part ablation`,
`--part chain`, `--part dims`, `--part weaker` and `--part deeper` are further questions: AdvBCT's
terms one by one, three encoders in a row, dims that change (LCE's and L2's maps), a smaller new
encoder, and GTSRB with the network of Omniglot.
Encoders and schedules were chosen by benchmarks/tune_schedule.py, on classes cut from the training
classes.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midspan.reports.bench_page import write_bench
from midspan.training.bench import BenchSettings, bench, read_results, read_settings

RESULTS = Path(__file__).parent / "results"
PARTS = ("table", "ablation", "chain", "dims", "weaker", "deeper")


@dataclass(frozen=True)
class Network:
    backbone: str
    lr: float


@dataclass(frozen=True)
class Set:
    network: Network
    size: int  # px
    epochs: int
    seeds: int
    augment: tuple[str, ...]
    exclude_column: str | None = None
    batch_size: int = 128


CNN = Network("small-cnn,width=16", lr=5e-3)
RESNET = Network("small-resnet,width=16", lr=2e-3)
SETS = {
    "omniglot32": Set(RESNET, size=32, epochs=5, batch_size=64, seeds=3, augment=("affine",)),
    "gtsrb32": Set(
        CNN, size=32, epochs=12, seeds=3, augment=("affine", "light"), exclude_column="track"
    ),
    "flowers32": Set(CNN, size=32, epochs=12, seeds=3, augment=("affine", "flip", "light")),
    "glyphs28": Set(RESNET, size=28, epochs=2, batch_size=64, seeds=1, augment=("affine",)),
}


DEEPER = dataclasses.replace(SETS["gtsrb32"], network=RESNET, epochs=8, batch_size=64)


def settings(data: Path, name: str, by: Set | None = None, **more: Any) -> BenchSettings:
    one = by or SETS[name]
    augment = f"train.augment=[{', '.join(repr(kind) for kind in one.augment)}]"
    base, _ = read_settings(
        None,
        [
            f"train.batch_size={one.batch_size}",
            f"train.lr={one.network.lr}",
            f"encoder.size={one.size}",
            augment,
        ],
    )
    given: dict[str, Any] = {
        "data": (str(data / f"{name}.npz"),),
        "backbone": one.network.backbone,
        "epochs": one.epochs,
        "seeds": one.seeds,
        "exclude_column": one.exclude_column,
        "base": base,
    }
    return BenchSettings(**given | more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=list(PARTS), default="table")
    parser.add_argument(
        "--only", choices=list(SETS), help="one data set of the table, or of the dims"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    plans: dict[str, BenchSettings] = {}
    if given.part == "table":
        for name in [given.only] if given.only else SETS:
            plans[name] = settings(given.data, name)
    elif given.part == "ablation":
        plans["ablation"] = settings(
            given.data,
            "omniglot32",
            allocations=("extended-class",),
            methods=("advbct",),
            ablation=True,
        )
    elif given.part == "chain":
        plans["chain"] = settings(
            given.data, "omniglot32", methods=("lce",), chain=("lce",), seeds=1
        )
    elif given.part == "dims":
        for name in [given.only] if given.only else ("omniglot32", "gtsrb32"):
            for old, new in ((64, 128), (128, 64)):
                plans[f"dims-{old}-{new}-{name}"] = settings(
                    given.data, name, methods=("lce", "l2"), dim=old, new_dim=new, seeds=1
                )
    elif given.part == "deeper":
        plans["deeper"] = settings(given.data, "gtsrb32", DEEPER)
    else:
        plans["weaker"] = settings(
            given.data,
            "omniglot32",
            new_backbone="small-resnet,width=8",
            allocations=("extended-backbone-data",),
            seeds=1,
        )
    failed = False
    for name, wanted in plans.items():
        started = time.perf_counter()
        command = f"python benchmarks/methods_table.py --part {given.part} ({name})"
        result = bench(wanted, out=given.out / name, jobs=given.jobs, command=command)
        minutes = (time.perf_counter() - started) / 60
        print(f"{name}: {len(result.rows)} rows, {minutes:.1f} min", flush=True)
        for title, reason in result.failures.items():
            failed = True
            print(f"failed: {title}: {reason}", file=sys.stderr)
        write_bench(
            [result.document], page=given.out / name / "index.html", tables=given.out / name
        )
    given.results.mkdir(parents=True, exist_ok=True)
    if given.part == "table":
        done = [name for name in SETS if (given.out / name / "bench.json").exists()]
        documents = [read_results(given.out / name) for name in done]
        write_bench(documents, page=given.out / "index.html", tables=given.out)
        for table in ("rows", "summary"):
            replace_sets(given.out / f"{table}.csv", given.results / f"methods_{table}.csv")
    elif given.part == "chain":
        shutil.copy(given.out / "chain" / "chains.csv", given.results / "methods_chains.csv")
    else:
        for name in plans:
            target = given.results / f"methods_{name.replace('-', '_')}.csv"
            shutil.copy(given.out / name / "rows.csv", target)
    sys.exit(1 if failed else 0)


def replace_sets(source: Path, target: Path) -> None:
    """The source's rows instead of those that the target has of the same data sets."""
    fresh = _read(source)
    sets = {row["data"] for row in fresh}
    kept = [row for row in _read(target) if row["data"] not in sets] if target.exists() else []
    rows = sorted([*kept, *fresh], key=lambda row: list(SETS).index(row["data"]))
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(fresh[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
