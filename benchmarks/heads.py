"""Heads over frozen features: every method, four allocations, three splits times three seeds.

    python benchmarks/heads.py protocol --lists LISTS --out OUT      # steps, rate and loss for all
    python benchmarks/heads.py tune --lists LISTS --out OUT          # on validation classes of CUB
    python benchmarks/heads.py strength --lists LISTS --out OUT --flowers FOLDER
    python benchmarks/heads.py run  --lists LISTS --out OUT [--flowers FOLDER] [--sets cub,market]

`protocol` trains the independent encoders alone, on classes held out from CUB's training classes.
`tune` tries the same number of candidates for each method on classes held out from CUB's training
classes and writes the best of each to results/heads_chosen.json; `run` takes them as they are to
the test classes of every set, except that ours has two settings and takes the one that is better on
held-out classes of the training data: these two are from `strength`, which tries more settings of
ours on validation classes of every set. All append to a CSV and continue where they were stopped.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from heads_cell import (
    Old,
    Protocol,
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
from heads_grid import (
    BY_HELD_OUT,
    GRID,
    PROTOCOL,
    PROTOCOLS,
    REFERENCES,
    STRENGTHS,
    Candidate,
)

RESULTS = Path(__file__).parent / "results"
CHOSEN = RESULTS / "heads_chosen.json"
ALLOCATIONS = (
    "extended-class",
    "extended-data",
    "extended-backbone-class",
    "extended-backbone-data",
)
BRIDGES = ("ridge", "kernel")
OURS = "trusted_matching"


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
            trained = train_new(
                data,
                old,
                backbone=cell.backbone,
                method=candidate.method,
                protocol=replace(protocol, **candidate.protocol),
                seed=cell.seed + 1,  # encoders that start alike are not independent
                mixup=candidate.mixup,
                start=candidate.start,
                dim=candidate.dim,
                class_rows=candidate.class_rows,
                instead=candidate.instead,
            )
            query, gallery = self._embedded(cell, trained.encoder)
            own = data.judge(query, gallery)
            dims = old_gallery.shape[1]
            if query.shape[1] > dims:
                query = prefix(query, dims)
            cross = data.judge(query, old_gallery)
            self._keep(cell, name, {"self": own, "cross": cross})
            values = scored(own=own, cross=cross, old=before, upper=upper)
            self.table.add(
                cell.key(name),
                {**values, "seconds": trained.seconds, "settings": candidate.to_json()},
            )

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
            self.table.add(cell.key(name), {**values, "seconds": trained.seconds, "settings": "{}"})
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
    data = load("cub", lists=given.lists, flowers=None).validation()
    runner = Runner(Table(RESULTS / "heads_tune.csv"), per_query=None)
    named = {
        f"{method}#{number}": candidate
        for method, candidates in GRID.items()
        for number, candidate in enumerate(candidates)
    }
    allocations = ("extended-class", "extended-backbone-class")
    for cell in cells(data, splits=given.splits, seeds=1, allocations=allocations):
        runner.cell(cell, named, bridges=True)
    scores: dict[str, list[float]] = {}
    for key, row in runner.table.done.items():
        if key[0] != data.name or key[1] not in allocations:
            continue
        scores.setdefault(key[-1], []).append(float(row["p_1"]))
    chosen = {}
    for method, candidates in GRID.items():
        names = [f"{method}#{number}" for number in range(len(candidates))]
        best = max(names, key=lambda name: float(np.mean(scores[name])))
        chosen[method] = {
            "p_1": round(float(np.mean(scores[best])), 5),
            **asdict(named[best]),
        }
    CHOSEN.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
    print(CHOSEN.read_text())


def strength(given: argparse.Namespace) -> None:
    """Settings of ours, and the published methods as chosen, on validation classes of each set."""
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8"))
    for entry in chosen.values():
        entry.pop("p_1")
    named = {name: Candidate(**entry) for name, entry in chosen.items() if name != OURS}
    path = RESULTS / "heads_strength.csv"
    if given.methods is None:
        named |= {f"{OURS}#{number}": candidate for number, candidate in enumerate(STRENGTHS)}
        named[f"{OURS}#held-out"] = BY_HELD_OUT
    else:  # what others would gain from a choice by set: all their candidates
        path = RESULTS / "heads_strength_others.csv"
        named = {
            f"{method}#{number}": candidate
            for method in given.methods.split(",")
            for number, candidate in enumerate(GRID[method])
        }
        named[f"{OURS}#held-out"] = BY_HELD_OUT
    runner = Runner(Table(path), per_query=None)
    for name in given.sets.split(","):
        data = load(name, lists=given.lists, flowers=given.flowers).validation()
        for cell in cells(data, splits=given.splits, seeds=1, allocations=ALLOCATIONS):
            runner.cell(cell, named, bridges=False)


def run(given: argparse.Namespace) -> None:
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8"))
    for entry in chosen.values():
        entry.pop("p_1")
    methods = {name: Candidate(**entry) for name, entry in chosen.items()}
    methods[OURS] = BY_HELD_OUT
    references = REFERENCES(chosen)
    runner = Runner(Table(RESULTS / "heads.csv"), per_query=given.out / "per_query")
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
    parser.add_argument("--sets", default="cub,market,flowers")
    parser.add_argument("--methods", help="these alone, by comma; run: '' for the bridges")
    parser.add_argument("--splits", type=int, default=3, help="tune and strength: 1 was used")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    {"protocol": protocol, "tune": tune, "strength": strength, "run": run}[given.what](given)


if __name__ == "__main__":
    main()
