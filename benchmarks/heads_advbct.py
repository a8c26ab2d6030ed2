"""AdvBCT over frozen features of CUB: its own setting, its threshold (Fig. 5), its course (Fig. 6).

    python benchmarks/heads_advbct.py --lists LISTS [--seeds 1] [--figure FILE]

`bn`: softmax without bias over a head with batch norm, for old and new, which is the paper's
setting, with our defaults and with smaller weights. `t`: the boundary's threshold. `steps`:
cross after so many steps, beside bct. Test classes, extended-class; nothing is chosen by it.
Appends to results/heads_advbct_*.csv and continues where it was stopped.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from heads import RESULTS, Cell, Runner, Table
from heads_cell import Protocol
from heads_data import load
from heads_grid import PROTOCOL, Candidate

PAPER = Protocol(loss={"name": "softmax"}, head="linear-bn")
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
STEPS = (50, 100, 200, 400, 800)
BCT = {"name": "bct", "weight": 1.0, "classifier": "distilled"}  # chosen by heads.py tune
ADVBCT = {"name": "advbct", "p2s_weight": 3.0, "adversarial_weight": 0.1}


def arms() -> dict[str, tuple[Protocol, dict[str, Candidate]]]:
    own = {
        "bn: bct": Candidate({"name": "bct"}),
        "bn: lce": Candidate({"name": "lce"}),
        "bn: advbct, defaults": Candidate({"name": "advbct"}),
        "bn: advbct, p2s 3, adversary 0.1": Candidate(ADVBCT),
    }
    sweep = {f"t: {t}": Candidate({**ADVBCT, "threshold": t}) for t in THRESHOLDS}
    course = {
        f"steps: {method['name']} {steps}": Candidate(method, protocol={"steps": steps})
        for steps in STEPS
        for method in (BCT, ADVBCT)
    }
    return {"bn": (PAPER, own), "cosine": (PROTOCOL, {**sweep, **course})}


def figure(table: Table, path: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # means of the seeds, with their range
    found: dict[str, list[dict[str, str]]] = defaultdict(list)  # by arm, one row a seed
    for key, row in table.done.items():
        found[key[-1]].append(row)

    def curve(
        axes: Any, places: Sequence[float], arms: Sequence[str], column: str, **how: Any
    ) -> None:
        values = np.array([[float(row[column]) for row in found[arm]] for arm in arms])
        (line,) = axes.plot(places, values.mean(axis=1), marker="o", **how)
        low, high = values.min(axis=1), values.max(axis=1)
        axes.fill_between(places, low, high, color=line.get_color(), alpha=0.15)

    shown, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    for column in ("self", "cross"):
        curve(left, THRESHOLDS, [f"t: {t}" for t in THRESHOLDS], column, label=column)
    for method in ("bct", "advbct"):
        arms = [f"steps: {method} {steps}" for steps in STEPS]
        curve(right, STEPS, arms, "cross", label=f"{method}, cross")
    for axes, title in ((left, "threshold t of the boundary"), (right, "steps")):
        old = float(np.mean([float(row["old_self"]) for row in found["t: 0.4"]]))
        axes.axhline(old, color="grey", linestyle=":", label="old self")
        axes.set_xlabel(title)
        axes.set_ylabel("mAP")
        axes.legend()
    right.set_xscale("log")
    right.set_xticks(STEPS, [str(steps) for steps in STEPS])
    right.set_xticks([], minor=True)
    shown.tight_layout()
    shown.savefig(path, dpi=90)


def main() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lists", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    data = load("cub", lists=given.lists, flowers=None)
    for seed in range(given.seeds):
        for name, (protocol, candidates) in arms().items():
            # an old encoder of its own for each setting, and a file of its own
            table = Table(RESULTS / f"heads_advbct_{name}.csv")
            runner = Runner(table, per_query=None, protocol=protocol)
            runner.cell(Cell(data, "extended-class", seed, 10 * seed), candidates, bridges=False)
    if given.figure is not None:
        figure(Table(RESULTS / "heads_advbct_cosine.csv"), given.figure)


if __name__ == "__main__":
    main()
