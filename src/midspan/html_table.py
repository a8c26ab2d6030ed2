"""Small HTML tables: what a result shows of itself in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape


def html_table(
    title: str, rows: Sequence[Sequence[str]], *, head: Sequence[str] = (), note: str = ""
) -> str:
    """A table with a caption; every cell is escaped."""
    cells = [f"<caption><b>{escape(title)}</b></caption>"]
    if head:
        cells.append("<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>")
    cells += [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    table = f"<table>{''.join(cells)}</table>"
    return f"{table}<p>{escape(note)}</p>" if note else table


def html_facts(title: str, facts: Mapping[str, object], *, note: str = "") -> str:
    """One row for each fact that is known; None and empty ones are left out."""
    rows = [
        [name.replace("_", " "), _text(value)] for name, value in facts.items() if _known(value)
    ]
    return html_table(title, rows, note=note)


def _known(value: object) -> bool:
    return value is not None and value not in ("", (), [], {})


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
