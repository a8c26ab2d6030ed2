"""The tables of the benchmark page, in the form of AdvBCT's Tables 3 and 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from midspan.reports.bench_summary import UPPER, MethodSummary, over_data
from midspan.reports.numbers import MISSING, fraction, percent
from midspan.reports.page import render
from midspan.reports.tables import Cell

if TYPE_CHECKING:
    from markupsafe import Markup

P_SCORES = (("p_up", "P up"), ("p_comp", "P comp"), ("p_1", "P 1"))
# parts of AdvBCT: name of the run → (classification, adversarial, point to set, elastic)
PARTS = {
    "advbct: adv": (False, True, False, True),
    "advbct: p2s": (False, False, True, True),
    "advbct: cls + adv": (True, True, False, True),
    "advbct: cls + p2s": (True, False, True, True),
    "advbct: adv + p2s": (False, True, True, True),
    "advbct: all, not elastic": (True, True, True, False),
    "advbct": (True, True, True, True),
}


def by_method(entries: Sequence[MethodSummary]) -> dict[str, list[MethodSummary]]:
    methods: dict[str, list[MethodSummary]] = {}
    for entry in entries:
        methods.setdefault(entry.method, []).append(entry)
    return methods


def ranked(entries: Sequence[MethodSummary]) -> list[str]:
    """Compatible methods, the best mean P 1 first."""
    methods = by_method([e for e in entries if e.group == "method" and e.method != UPPER])
    return sorted(methods, key=lambda name: -_or_zero(over_data(methods[name], "p_1")))


def main_table(entries: Sequence[MethodSummary], *, caption: str) -> Markup:
    """Rows are methods; a block of self and cross for each data set, then the P-scores."""
    data = list(dict.fromkeys(entry.data for entry in entries))
    by_case = {(entry.data, entry.method): entry for entry in entries}
    methods = ranked(entries)
    best = {
        (one, name): max(
            (by_case[one, m].mean[name] for m in methods if (one, m) in by_case), default=math.nan
        )
        for one in data
        for name in ("new_self", "cross")
    }
    rows = [_reference(entries, data, "old encoder", "old_self", None)]
    for method in (UPPER, *methods):
        cells: list[Cell] = [Cell(method, note="upper bound" if method == UPPER else "")]
        for one in data:
            entry = by_case.get((one, method))
            cells += _self_and_cross(entry, best, marked=method != UPPER)
        summaries = [by_case[one, method] for one in data if (one, method) in by_case]
        cells += _p_cells(summaries, upper=method == UPPER)
        rows.append(cells)
    rows.append(_reference(entries, data, "random vectors", None, "random_cross"))
    blocks = [(one, 2) for one in data] + [("mean over data sets", len(P_SCORES))]
    columns = ["self", "cross"] * len(data) + [title for _, title in P_SCORES]
    return block_table(blocks, columns, rows, first="method", caption=caption)


def ablation_table(entries: Sequence[MethodSummary], *, caption: str) -> Markup:
    """AdvBCT's terms on and off, as in its Table 2."""
    data = list(dict.fromkeys(entry.data for entry in entries if entry.method in PARTS))
    by_case = {(entry.data, entry.method): entry for entry in entries}
    rows = []
    for method, parts in PARTS.items():
        summaries = [by_case[one, method] for one in data if (one, method) in by_case]
        if not summaries:
            continue
        name = method.removeprefix("advbct: ") if method != "advbct" else "all (advbct)"
        cells = [Cell(name), *(Cell("✓" if on else MISSING) for on in parts)]
        for one in data:
            cells += _self_and_cross(by_case.get((one, method)), {}, marked=True)
        rows.append([*cells, _p_cells(summaries, upper=False)[-1]])
    blocks = [("terms", 4), *((one, 2) for one in data), ("mean", 1)]
    columns = ["cls", "adv", "p2s", "elastic", *(["self", "cross"] * len(data)), "P 1"]
    return block_table(blocks, columns, rows, first="part", caption=caption)


def detail_table(entries: Sequence[MethodSummary], *, caption: str) -> Markup:
    """What else was measured: gains, flips, the backfill and the time of training."""
    titles = (
        ("update_gain", "update gain"),
        ("perf_gain", "performance gain"),
        ("upgrade_gain", "upgrade gain"),
        ("backfill_area", "mean of the backfill"),
    )
    rows = []
    for entry in entries:
        if entry.group != "method":
            continue
        numbers = [
            Cell(fraction(entry.mean[name]), note=_spread(entry.spread[name])) for name, _ in titles
        ]
        flips = (entry.mean["negative_flips"], entry.mean["positive_flips"])
        rows.append(
            [
                Cell(entry.method, note=entry.data),
                Cell(percent(entry.self_share)),
                *numbers,
                *(Cell(percent(value)) for value in flips),
                Cell(f"{entry.mean['seconds']:.0f} s"),
            ]
        )
    columns = ["self ÷ upper", *(title for _, title in titles)]
    columns += ["negative flips", "positive flips", "training"]
    return block_table([], columns, rows, first="method", caption=caption)


def block_table(
    blocks: Sequence[tuple[str, int]],
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    first: str,
    caption: str,
) -> Markup:
    """A table whose columns are in named blocks; the first cell of a row is its header."""
    from markupsafe import Markup

    wrong = [len(row) for row in rows if len(row) != len(columns) + 1]
    if wrong:
        raise ValueError(f"expected {len(columns) + 1} cells in a row, got {wrong[0]}")
    spans = [(name, width) for name, width in blocks]
    owners = [name for name, width in spans for _ in range(width)] or [""] * len(columns)
    named = [f"{owner} {column}".strip() for owner, column in zip(owners, columns, strict=True)]
    context = {
        "blocks": spans,
        "columns": columns,
        "named": named,
        "rows": rows,
        "first": first,
        "caption": caption,
        "starts": _starts(blocks),
    }
    return Markup(render("block_table.html.j2", context))


# ---- private ------------------------------------------------------------------------------------


def _self_and_cross(
    entry: MethodSummary | None, best: dict[tuple[str, str], float], *, marked: bool
) -> list[Cell]:
    if entry is None:
        return [Cell(MISSING, tone="empty"), Cell(MISSING, tone="empty")]
    own, cross = entry.mean["new_self"], entry.mean["cross"]
    star = [
        " ★" if best.get((entry.data, n)) == entry.mean[n] else "" for n in ("new_self", "cross")
    ]
    first = Cell(fraction(own) + star[0], note=_spread(entry.spread["new_self"]))
    note = _spread(entry.spread["cross"])
    if not marked or not math.isfinite(cross):
        return [first, Cell(fraction(cross), note=note, tone="quiet")]
    if 0 < entry.met < entry.seeds:
        note = f"{note}, {entry.met} of {entry.seeds}"
    mark = "✓" if entry.meets else "✗"
    tone = Cell(
        f"{mark} {fraction(cross)}{star[1]}", note=note, tone="good" if entry.meets else "bad"
    )
    return [first, tone]


def _p_cells(entries: Sequence[MethodSummary], *, upper: bool) -> list[Cell]:
    if not entries:
        return [Cell(MISSING, tone="empty") for _ in P_SCORES]
    cells = [Cell(fraction(over_data(entries, name))) for name, _ in P_SCORES]
    return [Cell(MISSING, tone="quiet"), cells[1], Cell(MISSING, tone="quiet")] if upper else cells


def _reference(
    entries: Sequence[MethodSummary],
    data: Sequence[str],
    name: str,
    own: str | None,
    cross: str | None,
) -> list[Cell]:
    cells = [Cell(name)]
    for one in data:
        entry = next(entry for entry in entries if entry.data == one)
        for column in (own, cross):
            if column is None:
                cells.append(Cell(MISSING, tone="empty"))
            else:
                spread = _spread(entry.spread[column])
                cells.append(Cell(fraction(entry.mean[column]), note=spread, tone="quiet"))
    return cells + [Cell(MISSING, tone="empty")] * len(P_SCORES)


def _starts(blocks: Sequence[tuple[str, int]]) -> list[int]:
    """Columns at which a block begins: they get a line."""
    starts, at = [], 0
    for _, width in blocks:
        starts.append(at)
        at += width
    return starts


def _spread(value: float) -> str:
    return f"± {fraction(value)}" if math.isfinite(value) else ""


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
