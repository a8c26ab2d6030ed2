"""How the demo's settings were found: on validation classes cut from the training classes.

    python benchmarks/tune_demo.py           # writes benchmarks/results/tune_demo.csv

The test classes are never touched: 20 % of the training classes are held out, the old encoder
learns from 30 % of the rest, the new ones from all of it.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

from midspan.cli.demo import ALLOCATION, SETTINGS
from midspan.training import RunConfig, train

RESULTS = Path(__file__).parent / "results" / "tune_demo.csv"
CANDIDATES: dict[str, dict[str, Any]] = {
    "independent": {"name": "independent"},
    **{
        f"bct {kind} weight {weight:g} scale {scale:g}": {
            "name": "bct",
            "classifier": kind,
            "weight": weight,
            "scale": scale,
        }
        for kind, weight, scale in (
            ("synthesised", 1.0, 24.0),
            ("synthesised", 4.0, 24.0),
            ("centres", 1.0, 12.0),
            ("centres", 2.0, 12.0),
            ("centres", 4.0, 12.0),
            ("centres", 4.0, 8.0),
        )
    },
}


def settings(part: str, epochs: int, seed: int) -> dict[str, Any]:
    return {
        **SETTINGS,
        "seed": seed,
        "train": {**SETTINGS["train"], "epochs": epochs},
        "allocation": {**ALLOCATION, "part": part},
        "evaluate": {**SETTINGS["evaluate"], "validation": True},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, nargs="+", default=[8])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=None, help="keep the runs here")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    root = arguments.runs or Path(tempfile.mkdtemp())
    rows = []
    for epochs in arguments.epochs:
        for seed in range(arguments.seeds):
            place = root / f"e{epochs}-s{seed}"
            train(RunConfig.from_dict(settings("old", epochs, seed)), out=place / "old")
            for name, method in CANDIDATES.items():
                side = {"run": str(place / "old")}
                config = {**settings("new", epochs, seed + 1), "method": method, "old": side}
                run = train(RunConfig.from_dict(config), out=place / name.replace(" ", "-"))
                rows.append(
                    {
                        "epochs": epochs,
                        "seed": seed,
                        "method": name,
                        "old_self": round(run.scores["old_self"], 4),
                        "new_self": round(run.scores["self"], 4),
                        "cross": round(run.scores["cross"], 4),
                        "seconds": run.metrics["train_seconds"],
                    }
                )
                print(rows[-1], flush=True)
                with arguments.out.open("w", newline="") as file:
                    writer = csv.DictWriter(file, fieldnames=list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
