"""Tables: CSV and JSON for programs, HTML for people."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from markupsafe import Markup

Row = Mapping[str, Any]
Tone = Literal["", "good", "bad", "quiet", "empty"]  # empty: nothing to say, left out on a phone


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of an HTML table: text, a small note below it (an interval), and its tone."""

    text: str
    note: str = ""
    tone: Tone = ""


def rounded(value: Any, *, digits: int = 6) -> Any:
    """The same value as JSON can hold it: plain Python, floats rounded, NaN and infinity null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return round(value, digits) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): rounded(item, digits=digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits=digits) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def csv_text(rows: Sequence[Row], *, columns: Sequence[str] | None = None, digits: int = 6) -> str:
    """Rows as CSV with a header; columns in the order of their first appearance unless given."""
    if columns is None:
        columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (rounded(row.get(name), digits=digits) for name in columns)
        writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()


def write_csv(
    rows: Sequence[Row], path: str | Path, *, columns: Sequence[str] | None = None, digits: int = 6
) -> Path:
    """Write `csv_text` as UTF-8; the file appears whole or not at all."""
    from midspan.reports.page import write_text

    return write_text(csv_text(rows, columns=columns, digits=digits), path)


def html_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
    *,
    caption: str,
    footer: Sequence[Sequence[str | Cell]] = (),
) -> Markup:
    """An accessible table: the first cell of each row is its header. All text is escaped."""
    from markupsafe import Markup

    from midspan.reports.page import render

    wrong = [len(row) for row in (*rows, *footer) if len(row) != len(columns)]
    if wrong:
        raise ValueError(f"expected {len(columns)} cells in a row ({columns}), got {wrong[0]}")
    as_cells = [
        [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in part]
        for part in (rows, footer)
    ]
    context = {"columns": columns, "rows": as_cells[0], "footer": as_cells[1], "caption": caption}
    return Markup(render("table.html.j2", context))
