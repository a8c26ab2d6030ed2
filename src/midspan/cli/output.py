"""What commands print: one JSON document, or a table for people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from midspan.upgrade import GateResult

GROUPS = 10  # that are shown, the worst first
JSON_OPTION = typer.Option(False, "--json", help="Print one JSON document and nothing else.")


def print_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(_plain(document), indent=2))


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = ""
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", caption=note or None, caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: names are not markup
    console = Console()
    if not console.is_terminal:  # in a pipe or a file nothing is cut to the width of a window
        console = Console(width=10_000)
        table.expand = False
    console.print(table)


def percent(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def text_bar(value: float, *, width: int = 40) -> str:
    """A share between 0 and 1 as a bar, to an eighth of a character."""
    eighths = 0 if math.isnan(value) else round(8 * width * min(max(value, 0.0), 1.0))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:,.0f} ms"


def print_gate(result: GateResult) -> None:
    worst = sorted(result.groups.items(), key=lambda one: one[1][0].p or 0.0)[:GROUPS]
    rows = []
    for name, checks in [("all queries", result.checks), *worst]:
        for check in checks:
            interval = f"{percent(check.low)} … {percent(check.high)}"
            limit = ("≤ " if check.name == "negative flips" else "≥ ") + percent(check.limit)
            rows.append([name, check.name, percent(check.value), interval, limit, check.verdict])
    print_table(
        f"{result.verdict} · {result.n_queries:,} queries, {result.metric}",
        ["", "check", "%", "95 % interval", "limit", "verdict"],
        rows,
    )
    for line in gate_lines(result):
        print(f"· {line}")


def gate_lines(result: GateResult) -> list[str]:
    """What the table does not say: flips, how many more queries, what the evidence is worth."""
    lines = []
    if (flips := result.flips) is not None:
        lines.append(
            f"negative flips {percent(flips.negative)} %, positive {percent(flips.positive)} %; "
            f"an equally good encoder has {percent(flips.chance)} % by chance"
        )
    for check in result.checks:
        if check.verdict != "INCONCLUSIVE":
            continue
        needed = "more queries would not decide, the value is too near to the limit"
        if check.more_queries is not None:
            needed = f"about {check.more_queries:,} more queries would decide"
        lines.append(f"{check.name}: {needed}")
    if len(result.groups) > GROUPS:
        lines.append(f"{len(result.groups) - GROUPS:,} more groups: --json has them all")
    return [*lines, *result.notes]


def duration(seconds: float | None) -> str:
    if seconds is None or seconds < 120:
        return "–" if seconds is None else f"{seconds:.1f} s"
    if seconds >= 72 * 3600:
        return f"{seconds / 86400:,.1f} days"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _plain(value: Any) -> Any:
    """NumPy numbers as Python's, NaN as null: JSON knows neither."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
