"""Heads over frozen features: every method, four allocations, three splits times three seeds.

    python benchmarks/heads.py protocol --lists LISTS --out OUT      # steps, rate and loss for all
    python benchmarks/heads.py tune --lists LISTS --out OUT --sets cub,market --splits 1
    python benchmarks/heads.py strength --lists LISTS --out OUT --flowers FOLDER
    python benchmarks/heads.py run  --lists LISTS --out OUT [--flowers FOLDER] [--rule one-setting]

`protocol` trains the independent encoders alone, on classes held out from CUB's training classes.
`tune` tries the same number of candidates for each method on classes held out from the training
classes of each set named and writes the best of each to results/heads_chosen_<set>.json. `run`
takes the two of CUB and Market-1501 to the test classes of every set: in each cell a method gets
the one with the better self on held-out training classes (results/heads.csv); by the rule
one-setting it gets that of CUB everywhere (heads_one_setting.csv). `strength` tries more settings
of ours on validation classes of every set. All append to a CSV and continue where they were
stopped.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from heads_cell import (
    Old,
    Protocol,
    Trained,
    allocation_rows,
    embed,
    fitted_bridge,
    mapped,
    prefix,
    scored,
    train_new,
    train_old,
)
from heads_data import BACKBONES, HeadsData, load
from heads_grid import GRID, PROTOCOL, PROTOCOLS, REFERENCES, STRENGTHS, Candidate

from midspan.spaces import FloatArray, IntArray
from midspan.training.held_out import best_on_held_out

RESULTS = Path(__file__).parent / "results"
ALLOCATIONS = (
    "extended-class",
    "extended-data",
    "extended-backbone-class",
    "extended-backbone-data",
)
BRIDGES = ("ridge", "kernel")
OURS = "trusted-matching"
TUNED_ON = ("cub", "market")  # where the two settings of a method come from


@dataclass(frozen=True)
class Cell:
    """One old encoder and all that is compared with it."""

    data: HeadsData
    allocation: str
    split: int
    seed: int

    @property
    def family(self) -> str:
        return self.allocation.rpartition("-")[2]

    @property
    def backbone(self) -> str:
        return BACKBONES[1] if "backbone" in self.allocation else BACKBONES[0]

    def key(self, method: str) -> tuple[str, ...]:
        return (self.data.name, self.allocation, str(self.split), str(self.seed), method)


@dataclass
class Table:
    """Rows of a CSV file, by what identifies them; appended as they come."""

    path: Path
    done: dict[tuple[str, ...], dict[str, str]] = field(default_factory=dict)
    KEY = ("set", "allocation", "split", "seed", "method")

    def __post_init__(self) -> None:
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    self.done[tuple(row[name] for name in self.KEY)] = row

    def add(self, key: tuple[str, ...], values: Mapping[str, Any]) -> None:
        row = dict(zip(self.KEY, key, strict=True)) | {
            name: round(value, 5) if isinstance(value, float) else value
            for name, value in values.items()
        }
        fresh = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, fieldnames=list(row))
            if fresh:
                table.writeheader()
            table.writerow(row)
        self.done[key] = {name: str(value) for name, value in row.items()}
        print(
            *key,
            *(f"{name}={row[name]}" for name in ("old_self", "self", "cross", "p_1")),
            flush=True,
        )


@dataclass
class Runner:
    table: Table
    per_query: Path | None  # folder for per-query values, for paired intervals
    protocol: Protocol = PROTOCOL
    known: Table | None = None  # of one setting: what is there is not trained a second time

    def cell(self, cell: Cell, candidates: Mapping[str, Candidate], *, bridges: bool) -> None:
        todo = [name for name, given in candidates.items() if not self._done(cell, name, given)]
        if not todo and cell.key("independent") in self.table.done:
            return
        data, protocol = cell.data, self.protocol
        rows = allocation_rows(data, family=cell.family, split=cell.split)
        old = train_old(data, rows, protocol=protocol, seed=cell.seed)
        features = data.features[old.backbone]
        old_query = embed(old.encoder, features[data.query])
        old_gallery = embed(old.encoder, features[data.gallery])
        before = data.judge(old_query, old_gallery)
        self._keep(cell, "old", {"self": before})
        upper = self._independent(cell, old, old_gallery, before, bridges=bridges)
        for name in todo:
            candidate = candidates[name]
            chosen, settled, trial_seconds = self._settled(cell, old, candidate)
            row = self._known(cell, name, settled)
            if row is not None:
                taken = {"seconds": float(row["seconds"]) + trial_seconds, "chosen": chosen}
                row = row | taken | {"settings": candidate.to_json()}
                self.table.add(cell.key(name), {k: row[k] for k in row if k not in Table.KEY})
                continue
            trained = self.train(data, cell, old, settled)
            query, gallery = self._embedded(cell, trained.encoder)
            own = data.judge(query, gallery)
            dims = old_gallery.shape[1]
            if query.shape[1] > dims:
                query = prefix(query, dims)
            cross = data.judge(query, old_gallery)
            self._keep(cell, name, {"self": own, "cross": cross})
            values = scored(own=own, cross=cross, old=before, upper=upper)
            taken = {"seconds": trained.seconds + trial_seconds, "chosen": chosen}
            self.table.add(cell.key(name), {**values, **taken, "settings": candidate.to_json()})

    def train(self, data: HeadsData, cell: Cell, old: Old, candidate: Candidate) -> Trained:
        return train_new(
            data,
            old,
            backbone=cell.backbone,
            method=candidate.method,
            protocol=replace(self.protocol, **candidate.protocol),
            seed=cell.seed + 1,  # encoders that start alike are not independent
            mixup=candidate.mixup,
            start=candidate.start,
            dim=candidate.dim,
            class_rows=candidate.class_rows,
        )

    def _settled(self, cell: Cell, old: Old, candidate: Candidate) -> tuple[str, Candidate, float]:
        """The better of two settings on held-out training classes, its name, and the seconds."""
        if candidate.instead is None:
            return "", candidate, 0.0
        data, seconds = cell.data, 0.0

        def trial(tried: Candidate, kept: IntArray, held: IntArray) -> FloatArray:
            nonlocal seconds
            trained = self.train(replace(data, train=data.train[kept]), cell, old, tried)
            seconds += trained.seconds
            return embed(trained.encoder, data.features[cell.backbone][data.train[held]])

        two = dict(zip(TUNED_ON, (candidate, candidate.instead), strict=True))
        codes = np.unique(data.labels[data.train], return_inverse=True)[1].astype(np.int64)
        choice = best_on_held_out(codes, two, trial=trial, seed=cell.split)
        return choice.name, two[choice.name], seconds

    def _known(self, cell: Cell, name: str, settled: Candidate) -> dict[str, Any] | None:
        row = None if self.known is None else self.known.done.get(cell.key(name))
        same = replace(settled, instead=None).to_json()
        return row if row is not None and row["settings"] == same else None

    def _done(self, cell: Cell, name: str, given: Candidate) -> bool:
        """A row of other settings than these does not count."""
        row = self.table.done.get(cell.key(name))
        return row is not None and row["settings"] == given.to_json()

    def _independent(
        self,
        cell: Cell,
        old: Old,
        old_gallery: Any,
        before: Mapping[str, Any],
        *,
        bridges: bool,
    ) -> float:
        """Trained without the old encoder; its self is the upper bound of the others."""
        done = self.table.done.get(cell.key("independent"))
        wanted = [f"independent + {kind}" for kind in BRIDGES] if bridges else []
        if done is not None and all(cell.key(name) in self.table.done for name in wanted):
            return float(done["self"])
        data = cell.data
        trained = train_new(
            data,
            old,
            backbone=cell.backbone,
            method={"name": "independent"},
            protocol=self.protocol,
            seed=cell.seed + 1,
        )
        query, gallery = self._embedded(cell, trained.encoder)
        own = data.judge(query, gallery)
        upper = float(np.nanmean(own["map"]))
        cross = {"independent": query}
        if bridges:
            source = embed(trained.encoder, data.features[cell.backbone][data.train])
            target = embed(old.encoder, data.features[old.backbone][data.train])
            for kind in BRIDGES:
                bridge = fitted_bridge(kind, source, target)
                cross[f"independent + {kind}"] = mapped(bridge, query)
        for name, vectors in cross.items():
            if cell.key(name) in self.table.done:
                continue
            found = data.judge(vectors, old_gallery)
            self._keep(cell, name, {"self": own, "cross": found})
            values = scored(own=own, cross=found, old=before, upper=upper)
            taken = {"seconds": trained.seconds, "chosen": "", "settings": "{}"}
            self.table.add(cell.key(name), {**values, **taken})
        return upper

    def _embedded(self, cell: Cell, encoder: Any) -> tuple[Any, Any]:
        features, data = cell.data.features[cell.backbone], cell.data
        query = embed(encoder, features[data.query])
        gallery = query if data.query is data.gallery else embed(encoder, features[data.gallery])
        return query, gallery

    def _keep(self, cell: Cell, name: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
        if self.per_query is None:
            return
        self.per_query.mkdir(parents=True, exist_ok=True)
        flat = {
            f"{part}.{metric}": values.astype(np.float16)
            for part, measured in parts.items()
            for metric, values in measured.items()
        }
        file = "_".join(cell.key(name)).replace(" ", "").replace("+", "-")
        np.savez_compressed(self.per_query / f"{file}.npz", **flat)


def order(splits: int, seeds: int) -> Iterator[tuple[int, int]]:
    """(split, seed): each split once, then again with another seed. A stop leaves a fair table."""
    for turn in range(seeds):
        for split in range(splits):
            # another old encoder for every split and seed
            yield split, 10 * split + (split + turn) % seeds


def cells(data: HeadsData, *, splits: int, seeds: int, allocations: Any) -> Iterator[Cell]:
    for split, seed in order(splits, seeds):
        for allocation in allocations:
            yield Cell(data, allocation, split, seed)


def protocol(given: argparse.Namespace) -> None:
    """Self of the old and the new independent encoder, extended-class, for each of PROTOCOLS."""
    data = load("cub", lists=given.lists, flowers=None).validation()
    features = data.features[BACKBONES[0]]
    rows = allocation_rows(data, family="class", split=0)
    path = RESULTS / "heads_protocol.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["settings", "old_self", "new_self"])
        for changes in PROTOCOLS:
            tried = Protocol(**changes)
            old = train_old(data, rows, protocol=tried, seed=0)
            method = {"name": "independent"}
            new = train_new(data, old, backbone=BACKBONES[0], method=method, protocol=tried, seed=1)
            found = []
            for encoder in (old.encoder, new.encoder):
                vectors = embed(encoder, features[data.query])
                found.append(round(float(np.nanmean(data.judge(vectors, vectors)["map"])), 4))
            table.writerow([json.dumps(changes), *found])
            file.flush()


def tune(given: argparse.Namespace) -> None:
    for name in given.sets.split(","):
        data = load(name, lists=given.lists, flowers=given.flowers).validation()
        runner = Runner(Table(RESULTS / "heads_tune.csv"), per_query=None)
        named = _grid_by_name(GRID)
        allocations = ("extended-class", "extended-backbone-class")
        for cell in cells(data, splits=given.splits, seeds=1, allocations=allocations):
            runner.cell(cell, named, bridges=True)
        scores: dict[str, list[float]] = {}
        for key, row in runner.table.done.items():
            if key[0] == data.name and key[1] in allocations:
                scores.setdefault(key[-1], []).append(float(row["p_1"]))
        best = {}
        for method, candidates in GRID.items():
            names = [f"{method}#{number}" for number in range(len(candidates))]
            first = max(names, key=lambda name: float(np.mean(scores[name])))
            p_1 = round(float(np.mean(scores[first])), 5)
            best[method] = {"p_1": p_1, **json.loads(named[first].to_json())}
        path = RESULTS / f"heads_chosen_{name}.json"
        path.write_text(json.dumps(best, indent=1) + "\n", encoding="utf-8")
        print(path.read_text(encoding="utf-8"))


def _grid_by_name(grid: Mapping[str, list[Candidate]]) -> dict[str, Candidate]:
    return {
        f"{method}#{number}": candidate
        for method, candidates in grid.items()
        for number, candidate in enumerate(candidates)
    }


def chosen(name: str) -> dict[str, Candidate]:
    """The best of each method on validation classes of a set, by `tune`."""
    text = (RESULTS / f"heads_chosen_{name}.json").read_text(encoding="utf-8")
    found = json.loads(text)
    for entry in found.values():
        del entry["p_1"]
    return {method: Candidate(**entry) for method, entry in found.items()}


def both() -> dict[str, Candidate]:
    """That of CUB, and that of Market-1501 instead where a trial prefers it."""
    first, second = (chosen(name) for name in TUNED_ON)
    return {
        method: given if given == second[method] else replace(given, instead=second[method])
        for method, given in first.items()
    }


def strength(given: argparse.Namespace) -> None:
    """Settings of ours, and the published methods as chosen, on validation classes of each set."""
    path = RESULTS / "heads_strength.csv"
    named = {name: candidate for name, candidate in chosen("cub").items() if name != OURS}
    named |= _grid_by_name({OURS: STRENGTHS})
    if given.methods is not None:  # what others would gain from a choice by set
        path = RESULTS / "heads_strength_others.csv"
        named = _grid_by_name({method: GRID[method] for method in given.methods.split(",")})
    runner = Runner(Table(path), per_query=None)
    for name in given.sets.split(","):
        data = load(name, lists=given.lists, flowers=given.flowers).validation()
        for cell in cells(data, splits=given.splits, seeds=1, allocations=ALLOCATIONS):
            runner.cell(cell, named, bridges=False)


def run(given: argparse.Namespace) -> None:
    by_trial = given.rule == "held-out"
    methods = both() if by_trial else chosen("cub")
    references = REFERENCES(chosen("cub"), chosen("market")) if by_trial else {}
    path = RESULTS / ("heads.csv" if by_trial else "heads_one_setting.csv")
    runner = Runner(Table(path), per_query=given.out / "per_query" if by_trial else None)
    if given.reuse:
        runner.known = Table(RESULTS / "heads_one_setting.csv")
    sets = [load(name, lists=given.lists, flowers=given.flowers) for name in given.sets.split(",")]
    first = set(list(order(given.splits, given.seeds))[: given.splits])
    for split, seed in order(given.splits, given.seeds):
        for allocation in ALLOCATIONS:
            for data in sets:
                candidates = dict(methods)
                # parts left out: one seed of each split
                candidates |= references if (split, seed) in first else {}
                if given.methods is not None:
                    asked = given.methods.split(",")
                    candidates = {name: candidates[name] for name in asked if name in candidates}
                runner.cell(Cell(data, allocation, split, seed), candidates, bridges=True)


def main() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("protocol", "tune", "strength", "run"))
    parser.add_argument("--lists", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--flowers", type=Path)
    parser.add_argument("--sets", default="cub,market,flowers", help="tune: cub,market was used")
    parser.add_argument("--rule", choices=("held-out", "one-setting"), default="held-out")
    parser.add_argument("--methods", help="these alone, by comma; run: '' for the bridges")
    parser.add_argument(
        "--reuse",
        action="store_true",
        help="run: where the trial prefers CUB's setting, the row of heads_one_setting.csv; "
        "such rows have no values per query",
    )
    parser.add_argument("--splits", type=int, default=3, help="tune and strength: 1 was used")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    {"protocol": protocol, "tune": tune, "strength": strength, "run": run}[given.what](given)


if __name__ == "__main__":
    main()
