"""docs/scale.md shows what was measured and what the planner prints, as they are now."""

from __future__ import annotations

import csv
import json

from benchmarks import scale_page
from typer.testing import CliRunner

from midspan.cli.upgrade import app
from midspan.upgrade.unit_costs import SHIPPED


def test_the_page_is_what_its_script_writes() -> None:
    page = scale_page.PAGE.read_text(encoding="utf-8")
    assert page == scale_page.rewritten(page), "run python -m benchmarks.scale_page"


def test_the_plan_on_the_page_is_that_of_the_command() -> None:
    page = scale_page.PAGE.read_text(encoding="utf-8")
    shown = page.split("$ midspan upgrade plan ")[1].split("```")[0].splitlines()
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["plan", *shown[0].split()])
    assert [line.rstrip() for line in result.stdout.splitlines()] == shown[1:]
    made = json.loads(CliRunner().invoke(app, ["plan", *shown[0].split(), "--json"]).stdout)
    with SHIPPED.open(newline="") as file:
        costs = {(row["store"], row["name"]): float(row["value"]) for row in csv.DictReader(file)}
    each = 100 * costs["", "decode_seconds_per_kb"] + costs["", "embed_seconds"]
    assert made["embed_seconds"] == 1e9 * each / 64, "the page's plan is of the page's costs"
