"""What commands print: one JSON document, or a table for people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from midspan.upgrade import GateResult

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
    Console().print(table)


def percent(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def text_bar(value: float, *, width: int = 40) -> str:
    """A share between 0 and 1 as a bar, to an eighth of a character."""
    eighths = 0 if math.isnan(value) else round(8 * width * min(max(value, 0.0), 1.0))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.1 else f"{1000 * seconds:,.0f} ms"


def print_gate(result: GateResult) -> None:
    rows = []
    for name, checks in {"all queries": result.checks, **result.groups}.items():
        for check in checks:
            interval = f"{percent(check.low)} … {percent(check.high)}"
            limit = ("≤ " if check.name == "negative flips" else "≥ ") + percent(check.limit)
            rows.append([name, check.name, percent(check.value), interval, limit, check.verdict])
    print_table(
        f"{result.verdict} · {result.n_queries:,} queries, {result.metric}",
        ["", "check", "%", "95 % interval", "limit", "verdict"],
        rows,
    )


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
