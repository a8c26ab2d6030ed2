"""The upgrade benchmark in a small form: it runs, and its numbers are possible."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_small_form_measures_what_it_says(tmp_path: Path) -> None:
    results = tmp_path / "upgrade.csv"
    parts = ("search", "mixed", "rollback")
    command = [sys.executable, "-m", "benchmarks.upgrade", "--items", "2000"]
    for these in (parts, parts[2:]):  # a second run finds the galleries and replaces its rows
        wanted = [word for part in these for word in ("--part", part)]
        subprocess.run(
            [*command, *wanted, "--folder", str(tmp_path), "--results", str(results)],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
    with results.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    names = [(row["part"], row["what"]) for row in rows]
    assert len(set(names)) == len(names)
    assert {part for part, _ in names} == set(parts)
    values = {row["what"]: float(row["value"]) for row in rows}
    assert 0.9 <= values["recall@10 gallery"] <= 1
    assert values["one query: gallery / IVF of float32"] > 0
    assert values["at 100% refreshed: to the first right answer s"] < 30
