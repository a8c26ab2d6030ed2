"""The page of `midspan gate`: the verdict and the evidence behind it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midspan.reports.numbers import percent
from midspan.reports.page import render, write_text
from midspan.reports.tables import Cell, html_table
from midspan.reports.verdict import PageVerdict

if TYPE_CHECKING:
    from markupsafe import Markup

HEADLINES = {
    "PASS": "PASS: the switch keeps what users have today.",
    "INCONCLUSIVE": "INCONCLUSIVE: the intervals reach to both sides of the limits.",
    "FAIL": "FAIL: the switch would take away more than is allowed.",
}


def gate_page(result: Mapping[str, Any], path: str | Path, *, command: str = "") -> Path:
    """Write the page from the gate's result as a document (`GateResult.to_dict()`)."""
    whom = "labelled queries" if result["labelled"] else "queries without labels"
    verdict = PageVerdict(
        holds=result["verdict"] != "FAIL",
        headline=HEADLINES[result["verdict"]],
        sentence=f"{result['n_queries']:,} {whom}, judged by {result['metric']}; intervals are "
        "95 % bootstrap intervals over the queries.",
    )
    context = {
        "title": f"{result['verdict']} · midspan gate",
        "eyebrow": "midspan gate",
        "verdict": verdict,
        "checks": _table({"all queries": result["checks"]}, caption="All queries"),
        "groups": _table(result["groups"], caption="Group by group") if result["groups"] else "",
        "worst": list(result["worst"]),
        "command": command,
    }
    return write_text(render("gate.html.j2", context), path)


def _table(groups: Mapping[str, Any], *, caption: str) -> Markup:
    rows: list[list[str | Cell]] = []
    for name, checks in groups.items():
        for check in checks:
            sign = "at most" if check["name"] == "negative flips" else "at least"
            mark = {"PASS": "✓", "INCONCLUSIVE": "!", "FAIL": "✗"}[check["verdict"]]
            rows.append(
                [
                    name,
                    check["name"],
                    Cell(
                        percent(check["value"]),
                        note=f"{percent(check['low'])} to {percent(check['high'])}",
                    ),
                    f"{sign} {percent(check['limit'])}",
                    f"{mark} {check['verdict']}",
                ]
            )
    columns = ["queries", "question", "measured", "limit", "verdict"]
    return html_table(columns, rows, caption=caption)
