"""Writes the tables of benchmarks/results/methods_summary.csv into the docs.

    python -m benchmarks.methods_page

The two tables of docs/small_networks.md, and "## Measured" on each page of docs/methods/. Sentences
about them are written by hand. tests/test_methods_page.py compares docs and file.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUMMARY = ROOT / "benchmarks" / "results" / "methods_summary.csv"
BENCHMARKS = ROOT / "docs" / "small_networks.md"
PAGES = ROOT / "docs" / "methods"
SETS = ("omniglot32", "gtsrb32", "flowers32", "glyphs28")
CASES = ("extended-class", "extended-data")
METHODS = ("bct", "l2", "lce", "hot_refresh", "unibct", "advbct", "mixbct", "simplex")
MEASURED = """\
## Measured

mAP on classes that no encoder was trained on, mean ± standard deviation of the seeds; bold: cross
above old self in every seed. Upper: the self value of an encoder trained without regard for the old
one. Small networks from scratch; command, schedule, limits and the other methods:
[appendix](../small_networks.md). Over frozen features of photographs: [heads](../heads.md).

| data | case | old self | upper | self | cross | P_1 |
|---|---|---|---|---|---|---|
"""

Row = dict[str, str]
Rows = dict[tuple[str, str, str], Row]  # by data, case and method


def main() -> None:
    rows = read(SUMMARY)
    BENCHMARKS.write_text(benchmarks(BENCHMARKS.read_text(encoding="utf-8"), rows), "utf-8")
    for method in METHODS:
        page = PAGES / f"{method}.md"
        page.write_text(measured(page.read_text(encoding="utf-8"), method, rows), "utf-8")


def read(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return {
            (row["data"], row["allocation"], row["method"]): row for row in csv.DictReader(file)
        }


def benchmarks(text: str, rows: Rows) -> str:
    """The page with its two tables made anew."""
    for case in CASES:
        start = re.escape(f"| {case} | {SETS[0]} self | cross |")
        found = re.findall(rf"{start}.*\n(?:\|.*\n)+", text)
        if len(found) != 1:
            raise SystemExit(f"{BENCHMARKS.name}: {len(found)} tables of {case}, wanted one")
        text = text.replace(found[0], table(case, rows))
    return text


def measured(text: str, method: str, rows: Rows) -> str:
    """The page with its section made anew."""
    lines = []
    for data in SETS:
        for case in CASES:
            row = rows[data, case, method]
            numbers = (plain(row, "old_self"), plain(row, "upper_self"), spread(row, "new_self"))
            cells = (data, case, *numbers, cross(row), spread(row, "p_1"))
            lines.append(f"| {' | '.join(cells)} |\n")
    section = MEASURED + "".join(lines)
    text, times = re.subn(r"## Measured\n.*?(?=\n## )", lambda _: section, text, flags=re.S)
    if times != 1:
        raise SystemExit(f"{method}.md: {times} sections 'Measured', wanted one")
    return text


def table(case: str, rows: Rows) -> str:
    head = f"| {case} | " + " | ".join(f"{data} self | cross" for data in SETS) + " |\n"
    head += "|---|" + "---|---|" * len(SETS) + "\n"
    old = " | ".join(f"{plain(rows[data, case, 'bct'], 'old_self')} | –" for data in SETS)
    lines = [f"| old | {old} |\n"]
    for method in ("independent", *METHODS):
        of_sets = [rows[data, case, method] for data in SETS]
        cells = " | ".join(f"{spread(row, 'new_self')} | {cross(row)}" for row in of_sets)
        lines.append(f"| `{method}` | {cells} |\n")
    return head + "".join(lines)


def plain(row: Row, what: str) -> str:
    return f"{float(row[f'{what}_mean']):.3f}"


def spread(row: Row, what: str) -> str:
    several = int(row["seeds"]) > 1
    return plain(row, what) + (f" ± {float(row[f'{what}_std']):.3f}" if several else "")


def cross(row: Row) -> str:
    if row["method"] == "independent":
        return spread(row, "cross")
    seeds, met = int(row["seeds"]), int(row["meets_criterion"])
    value = spread(row, "cross")
    return f"**{value}**" if met == seeds else f"{value} ({met} of {seeds})"


if __name__ == "__main__":
    main()
