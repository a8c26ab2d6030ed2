"""Which defaults serve `trusted-matching` when a small network trains from scratch.

    python benchmarks/trusted_defaults.py --data FOLDER --out OUT

FOLDER holds gtsrb32.npz and omniglot32.npz. Each arm trains on the training classes without the
validation classes and is scored on those, for extended-class and extended-data, one seed →
results/trusted_defaults.csv, continuing where it was stopped. Heads over frozen features have the
same arms in results/heads_strength.csv (`heads.py strength`).
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path
from typing import Any

import torch

from midspan.evaluation import p_scores
from midspan.training.run import train
from midspan.training.settings import RunConfig

HERE = Path(__file__).parent
AUGMENT = {"gtsrb32": '["affine", "light"]', "omniglot32": '["affine"]'}
EPOCHS = 12
LIGHT = {"class_weight": 0.1, "contrast_weight": 0.1, "pull_weight": 5.0, "whitening": 1.0}
FIRST = {"class_weight": 1.0, "contrast_weight": 1.0, "pull_weight": 10.0, "whitening": 0.0}
ARMS: dict[str, dict[str, Any]] = {
    "independent": {"name": "independent"},
    "l2": {"name": "l2"},
    "hot-refresh": {"name": "hot-refresh"},
    "first defaults": {"name": "trusted-matching", **FIRST},
    "first defaults, whitened": {"name": "trusted-matching", **FIRST, "whitening": 1.0},
    "light": {"name": "trusted-matching", **LIGHT},
}
FROM_CENTRES = ("l2", "first defaults", "first defaults, whitened", "light")
ARMS |= {f"{arm}, from old centres": ARMS[arm] for arm in FROM_CENTRES}
FIELDS = ("set", "allocation", "arm", "old_self", "self", "cross", "p_1")


def config(name: str, given: argparse.Namespace, *changes: str) -> RunConfig:
    return RunConfig.load(
        HERE / "configs" / f"{name}.toml",
        changes=[
            f'data.path="{(given.data / f"{name}.npz").resolve()}"',
            f"train.epochs={EPOCHS}",
            f"train.augment={AUGMENT[name]}",
            "evaluate.validation=true",
            *changes,
        ],
    )


def main() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default="gtsrb32,omniglot32")
    given = parser.parse_args()
    path = HERE / "results" / "trusted_defaults.csv"
    done: dict[tuple[str, str, str], dict[str, str]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            done = {(r["set"], r["allocation"], r["arm"]): r for r in csv.DictReader(file)}
    else:
        path.write_text(",".join(FIELDS) + "\n", encoding="utf-8")
    for name in given.sets.split(","):
        for allocation in ("extended-class", "extended-data"):
            todo = [arm for arm in ARMS if (name, allocation, arm) not in done]
            kind = f'allocation.kind="{allocation}"'
            old = given.out / f"{name}-{allocation}-old"
            if todo and not old.exists():
                train(
                    config(name, given, kind, 'allocation.part="old"', "seed=0"),
                    out=old,
                    progress=False,
                )
            for arm in todo:
                method = [f"method.{key}={_toml(value)}" for key, value in ARMS[arm].items()]
                changes = [kind, 'allocation.part="new"', "seed=1", *method]
                changes += [f'old.run="{old.resolve()}"']
                changes += ['classifier.init="old-centres"'] if arm.endswith("centres") else []
                out = given.out / f"{name}-{allocation}-{arm.replace(', ', '-').replace(' ', '-')}"
                scores = train(config(name, given, *changes), out=out, progress=False).scores
                upper = done.get((name, allocation, "independent"), {"self": scores["self"]})
                p = p_scores(
                    old=scores["old_self"],
                    new=scores["self"],
                    cross=scores["cross"],
                    upper=float(upper["self"]),
                )
                numbers = (scores["old_self"], scores["self"], scores["cross"], p.score)
                line = [name, allocation, arm, *(round(value, 4) for value in numbers)]
                with path.open("a", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerow(line)
                done[name, allocation, arm] = dict(zip(FIELDS, map(str, line), strict=True))
                print(*line, flush=True)


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    main()
