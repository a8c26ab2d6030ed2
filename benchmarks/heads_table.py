"""Tables of the heads tier, from results/heads.csv and the per-query files of `heads.py run`.

    python benchmarks/heads_table.py --lists LISTS --flowers FLOWERS --out OUT

Only those (split, seed) count that have been run on all sets with all methods. Writes
heads_summary.csv, heads_p1.csv, heads_paired.csv and heads_parts.csv to results/, the first two
also of heads_one_setting.csv, and the same as tables into docs/heads.md, beside the settings that
were chosen, results/market_finetune.csv and a summary of heads_strength.csv. The summary is also in
docs/benchmarks.md. Without --lists the paired intervals are left as they are. --check writes
nothing and fails if anything would change: tests/test_heads_page.py.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from heads import ALLOCATIONS, RESULTS, TUNED_ON, Table
from heads_data import load
from heads_grid import FIRST

OURS = "trusted-matching"
BRIDGES = ("independent + ridge", "independent + kernel")
METHODS = (*FIRST, *BRIDGES)
SETS = ("cub", "flowers", "market")
CELLS = 108  # 3 sets, 4 allocations, 3 splits, 3 seeds
DRAWS = 2000
PARTS = ["arm", "cells", "P_1", "plain", "cross", "plain", "self", "plain"]
SUMMARY = ["method", "P_1", "cross / old self", "self / upper", "negative flips", "cross > old"]
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "heads.md"
Row = dict[str, str]
Cell = tuple[str, str, str, str]  # set, allocation, split, seed


def whole_cells(rows: Iterable[Row]) -> dict[Cell, dict[str, Row]]:
    """Cells by method, of each (split, seed) that is whole: all methods, sets and allocations."""
    found: dict[Cell, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        key = (row["set"], row["allocation"], row["split"], row["seed"])
        found[key][row["method"]] = row
    whole = {key: cell for key, cell in found.items() if all(name in cell for name in METHODS)}
    counts = Counter(key[2:] for key in whole)
    return {key: cell for key, cell in whole.items() if counts[key[2:]] == len(SETS) * 4}


def mean(cells: Iterable[dict[str, Row]], method: str, column: str) -> float:
    return float(np.mean([float(cell[method][column]) for cell in cells if method in cell]))


def summary(cells: dict[Cell, dict[str, Row]], methods: Sequence[str]) -> list[list[Any]]:
    """One line for each method, over the cells that it was run in."""
    lines = []
    for method in methods:
        found = [cell[method] for cell in cells.values() if method in cell]
        ratios = [float(row["cross"]) / float(row["old_self"]) for row in found]
        selfs = [float(row["self"]) / float(row["upper_self"]) for row in found]
        lines.append(
            [
                method,
                round(float(np.mean([float(row["p_1"]) for row in found])), 3),
                round(float(np.mean(ratios)), 3),
                round(float(np.mean(selfs)), 3),
                round(float(np.mean([float(row["negative_flips"]) for row in found])), 3),
                f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)}",
            ]
        )
    return sorted(lines, key=lambda line: -line[1])


def by_allocation(
    cells: dict[Cell, dict[str, Row]], column: str
) -> dict[tuple[str, str], dict[str, float]]:
    groups: dict[tuple[str, str], list[dict[str, Row]]] = defaultdict(list)
    for key, cell in cells.items():
        groups[key[:2]].append(cell)
    order = sorted(groups, key=lambda key: (key[0], ALLOCATIONS.index(key[1])))
    return {key: {name: mean(groups[key], name, column) for name in METHODS} for key in order}


def said_beforehand(cells: dict[Cell, dict[str, Row]]) -> list[str]:
    """The criteria of the comparison, as they come out."""
    p_1, flips = by_allocation(cells, "p_1"), by_allocation(cells, "negative_flips")
    others = [name for name in METHODS if name != OURS]
    best = sum(line[OURS] >= max(line[name] for name in others) for line in p_1.values())
    behind = max(max(line[name] for name in others) - line[OURS] for line in p_1.values())
    fewer = sum(line[OURS] <= line["hot-refresh"] for line in flips.values())
    above = {
        name: sum(float(c[name]["cross"]) > float(c[name]["old_self"]) for c in cells.values())
        for name in METHODS
    }
    second = max(others, key=lambda name: above[name])
    return [
        f"cross above old self: {above[OURS]} of {len(cells)} cells; next {second}, "
        f"{above[second]}",
        f"best mean P_1 in {best} of {len(p_1)}; furthest behind the best: {max(behind, 0):.3f}",
        f"negative flips at most those of hot-refresh in {fewer} of {len(flips)}",
    ]


def paired(
    cells: dict[Cell, dict[str, Row]], per_query: Path, labels: dict[str, Any]
) -> list[list[Any]]:
    """Cross and self mAP of ours minus the best other method's, with intervals over classes.

    Over the runs whose values per query are in the folder: the table says how many.
    """
    lines = []
    for (name, allocation), p_1 in by_allocation(cells, "p_1").items():
        other = max((m for m in METHODS if m != OURS), key=lambda m: p_1[m])
        runs = [
            key
            for key in cells
            if key[:2] == (name, allocation)
            and all(_file(per_query, key, m).exists() for m in (OURS, other))
        ]
        if not runs:
            print(f"{per_query}: no values of {OURS} and {other} for {name}, {allocation}")
            continue
        line = [name, allocation, len(runs), other]
        for part in ("cross", "self"):
            apart = []
            for key in runs:
                ours, theirs = (_values(per_query, key, m, part) for m in (OURS, other))
                apart.append(ours - theirs)
            each = np.nanmean(np.stack(apart), axis=0)  # (Q,) over the runs
            line += [round(value, 4) for value in _interval(each, labels[name])]
        lines.append(line)
    return lines


def _file(folder: Path, key: Cell, method: str) -> Path:
    return folder / ("_".join((*key, method)).replace(" ", "").replace("+", "-") + ".npz")


def _values(folder: Path, key: Cell, method: str, part: str) -> Any:
    return np.load(_file(folder, key, method))[f"{part}.map"].astype(np.float64)


def _interval(values: Any, labels: Any) -> tuple[float, float, float]:
    """Mean, and its 95 % interval when classes are drawn again."""
    known = ~np.isnan(values)
    codes = np.unique(labels[known], return_inverse=True)[1]
    sums, counts = np.bincount(codes, values[known]), np.bincount(codes)
    drawn = np.random.default_rng(0).integers(len(sums), size=(DRAWS, len(sums)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(values[known].mean()), float(low), float(high)


def settings_chosen(cells: dict[Cell, dict[str, Row]]) -> list[str]:
    """Both settings of each method, and in how many cells of a set the trial took Market's."""
    heads = " | ".join(SETS)
    lines = [f"| method | A: CUB | P_1 | B: Market | P_1 | {heads} |", "|---" * 8 + "|"]
    found = {}
    for name in TUNED_ON:
        text = (RESULTS / f"heads_chosen_{name}.json").read_text(encoding="utf-8")
        found[name] = json.loads(text)
    for method in FIRST:
        shown = " | ".join(
            f"{_settings(found[name][method])} | {found[name][method]['p_1']:.3f}"
            for name in TUNED_ON
        )
        counts = []
        for name in SETS:
            taken = [c[method]["chosen"] for key, c in cells.items() if key[0] == name]
            counts.append(f"{taken.count(TUNED_ON[1])} of {len(taken)}" if any(taken) else "–")
        lines.append(f"| {method} | {shown} | {' | '.join(counts)} |")
    return lines


def both_rules(cells: dict[Cell, dict[str, Row]], rows: Iterable[Row]) -> list[list[Any]]:
    """Mean P_1 by set over the cells that both rules have: by the trial, and with CUB's setting."""
    alone = {(*(row[name] for name in Table.KEY),): float(row["p_1"]) for row in rows}
    lines = []
    for method in FIRST:
        line: list[Any] = [method]
        for name in SETS:
            keys = [key for key in cells if key[0] == name and (*key, method) in alone]
            tried = [float(cells[key][method]["p_1"]) for key in keys]
            line += [f"{np.mean(tried):.3f}", f"{np.mean([alone[*k, method] for k in keys]):.3f}"]
        lines.append(line)
    return lines


def _settings(given: Mapping[str, Any]) -> str:
    """What differs from the plain candidate, in words of a run file."""
    own = [f"{name} {value}" for name, value in given["method"].items() if name != "name" and value]
    if given["start"] != "random":
        own.append(f"start {given['start']}")
    if given["class_rows"] != "old-centres":
        own.append(f"class rows {given['class_rows']}")
    if given["mixup"]:
        own.append(f"mixup {given['mixup']}")
    own += [f"{name} {value}" for name, value in given["protocol"].items()]
    return ", ".join(own)


@dataclass
class Output:
    """Files as they should be, by path: CSV files, and pages with tables between two marks."""

    texts: dict[Path, str] = field(default_factory=dict)

    def table(self, name: str, head: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
        file = io.StringIO()
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(lines)
        self.texts[RESULTS / f"{name}.csv"] = file.getvalue()
        self.on_page(name, as_markdown(head, lines))

    def on_page(self, name: str, lines: Sequence[str], *, page: Path = PAGE) -> None:
        text = self.texts.get(page) or _read(page)
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not (start and end):
            raise SystemExit(f"{page}: no marks of {name}")
        self.texts[page] = before + start + "\n".join(lines) + "\n" + end + after

    def stale(self) -> list[Path]:
        return [path for path, text in self.texts.items() if _read(path) != text]


def as_markdown(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> list[str]:
    rows = ["| " + " | ".join(str(value) for value in line) + " |" for line in lines]
    return ["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *rows]


def _read(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open(newline="", encoding="utf-8") as file:
        return file.read()


def parts_changed(rows: Iterable[Row]) -> list[list[Any]]:
    """Each arm beside the plain setting of CUB over the same cells, in whichever it was run."""
    found: dict[str, dict[Cell, Row]] = defaultdict(dict)
    for row in rows:
        key = (row["set"], row["allocation"], row["split"], row["seed"])
        found[row["method"]][key] = row
    lines = []
    for arm in sorted(name for name in found if ":" in name):
        base = f"{re.split('[: ]', arm)[0]}: chosen on CUB"
        base = "independent" if arm.startswith("independent") else base
        if arm == base:
            continue
        cells = [key for key in found[arm] if key in found[base]]
        values = []
        for column in ("p_1", "cross", "self"):
            for name in (arm, base):
                values.append(float(np.mean([float(found[name][k][column]) for k in cells])))
        lines.append([arm, len(cells), *(f"{value:.3f}" for value in values)])
    return lines


def fine_tuned() -> list[str]:
    """results/market_finetune.csv as a table, by arm and seed."""
    found: dict[str, list[Row]] = defaultdict(list)
    with (RESULTS / "market_finetune.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["arm"]].append(row)
    columns = ("self_map", "self_rank1", "cross_map", "cross_rank1")
    lines = ["| arm | seed | self mAP | self rank-1 | cross mAP | cross rank-1 |", "|---" * 6 + "|"]
    for arm, rows in found.items():
        for row in rows:
            values = " | ".join(row[column] or "–" for column in columns)
            lines.append(f"| {arm} | {row['seed']} | {values} |")
    return lines


def strengths() -> list[str]:
    """P_1 of results/heads_strength.csv by set, mean of the cells with all candidates."""
    found: dict[Cell, dict[str, Row]] = defaultdict(dict)
    with (RESULTS / "heads_strength.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not row["method"].startswith("independent"):
                key = (row["set"].removesuffix("-validation"), row["allocation"])
                found[*key, row["split"], row["seed"]][row["method"]] = row
    names = {name for cell in found.values() for name in cell}
    whole = {key: cell for key, cell in found.items() if set(cell) == names}
    sets = [name for name in SETS if any(key[0] == name for key in whole)]
    counts = Counter(key[0] for key in whole)

    def p_1(method: str, name: str) -> float:
        return mean((cell for key, cell in whole.items() if key[0] == name), method, "p_1")

    means = {method: [p_1(method, name) for name in sets] for method in names}
    heads = " | ".join(f"{name} ({counts[name]} cells)" for name in sets)
    lines = [f"| method | settings | {heads} | mean |", "|---" * (len(sets) + 3) + "|"]
    settings = {method: row["settings"] for cell in whole.values() for method, row in cell.items()}
    for method in sorted(names, key=lambda name: (-round(float(np.mean(means[name])), 4), name)):
        given = json.loads(settings[method])
        cut = " | ".join(f"{value:.3f}" for value in (*means[method], np.mean(means[method])))
        lines.append(f"| {method.partition('#')[0]} | {_settings(given)} | {cut} |")
    return lines


def compared(output: Output, name: str) -> dict[Cell, dict[str, Row]]:
    """Count, summary, P_1 by set and allocation, and the criteria of one file; its whole cells."""
    with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        cells = whole_cells(csv.DictReader(file))
    count = f"{len(cells)} of {CELLS} cells have been run with all methods."
    output.on_page(f"{name}_count", [count])
    output.table(f"{name}_summary", SUMMARY, summary(cells, METHODS))
    p_1 = by_allocation(cells, "p_1")
    runs = {key: sum(cell[:2] == key for cell in cells) for key in p_1}
    lines = [[*key, runs[key], *(round(v, 3) for v in line.values())] for key, line in p_1.items()]
    output.table(f"{name}_p1", ["set", "allocation", "runs", *METHODS], lines)
    output.on_page(f"{name}_criteria", [f"- {line}" for line in said_beforehand(cells)])
    return cells


def made() -> tuple[Output, dict[Cell, dict[str, Row]]]:
    """All tables but the paired intervals, which are read as they are."""
    output = Output()
    cells = compared(output, "heads")
    output.on_page(
        "heads_summary",
        as_markdown(SUMMARY, summary(cells, METHODS)),
        page=DOCS / "benchmarks.md",
    )
    compared(output, "heads_one_setting")
    output.on_page("heads_settings", settings_chosen(cells))
    with (RESULTS / "heads_one_setting.csv").open(newline="", encoding="utf-8") as file:
        head = ["method", *(text for name in SETS for text in (f"{name}: trial", "A alone"))]
        output.table("heads_rules", head, both_rules(cells, csv.DictReader(file)))
    with (RESULTS / "heads.csv").open(newline="", encoding="utf-8") as file:
        output.table("heads_parts", PARTS, parts_changed(csv.DictReader(file)))
    output.on_page("market_finetune", fine_tuned())
    output.on_page("heads_strength", strengths())
    for name in ("heads_paired", "heads_geometry"):
        with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            head, *lines = csv.reader(file)
        output.on_page(name, as_markdown(head, lines))
    return output, cells


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lists", type=Path)
    parser.add_argument("--flowers", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it would")
    given = parser.parse_args()
    output, cells = made()
    if given.check:
        if output.stale():
            names = ", ".join(str(path) for path in output.stale())
            raise SystemExit(f"{names}: not as the results are; run benchmarks/heads_table.py")
        return
    if given.lists is not None:
        names = sorted({key[0] for key in cells})
        data = {name: load(name, lists=given.lists, flowers=given.flowers) for name in names}
        labels = {name: found.labels[found.query] for name, found in data.items()}
        head = ["set", "allocation", "runs", "best other", "cross", "low", "high"]
        lines = paired(cells, given.out / "per_query", labels)
        output.table("heads_paired", [*head, "self", "self low", "self high"], lines)
    for path in output.stale():
        with path.open("w", newline="", encoding="utf-8") as file:
            file.write(output.texts[path])
        print(f"{path}: written")


if __name__ == "__main__":
    main()
