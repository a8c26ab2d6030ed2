"""The tables of the comparison page: findings with intervals, and groups, worst first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from midspan.evaluation import Comparison, Group
from midspan.reports.numbers import count, fraction, interval, metric_name, percent, signed
from midspan.reports.tables import Cell, Tone, html_table

if TYPE_CHECKING:
    from markupsafe import Markup

# name in the Comparison, name on the page, what it is
SCORES = (
    ("old_self", "old self", "old queries, old gallery"),
    ("cross", "cross", "new queries, old gallery"),
    ("new_self", "new self", "new queries, new gallery"),
    ("upper_self", "upper self", "an encoder trained alone, on itself"),
    ("negative_flips", "negative flips", "queries that lose their first hit"),
    ("positive_flips", "positive flips", "queries that win a first hit"),
)
GAINS = (
    ("update_gain", "update gain", "(cross − old) ÷ (upper − old)"),
    ("perf_gain", "performance gain", "(new − old) ÷ |upper − old|"),
    ("upgrade_gain", "upgrade gain", "(cross − old) ÷ |upper − old|"),
    ("p_up", "P up", "0.5: on itself as good as trained alone"),
    ("p_comp", "P comp", "above 0.5: cross is above old self"),
    ("p_1", "P 1", "harmonic mean of the two"),
)
SHARES = ("negative_flips", "positive_flips")
SHOWN_GROUPS = 40


def scores_table(c: Comparison) -> Markup:
    """Scores and flips with their intervals."""
    caption = f"{metric_name(c.metric)} and flips, means over the queries"
    return html_table(["Measure", "value", "95 % interval"], _rows(c, SCORES), caption=caption)


def gains_table(c: Comparison) -> Markup | None:
    """Gains and P-scores with their intervals; None without an upper bound to measure by."""
    if c.upper_self is None:
        return None
    caption = "Gains and P-scores, of 1"
    return html_table(["Measure", "value", "95 % interval"], _rows(c, GAINS), caption=caption)


def _rows(c: Comparison, names: tuple[tuple[str, str, str], ...]) -> list[list[str | Cell]]:
    rows: list[list[str | Cell]] = []
    for name, title, meaning in names:
        value: float | None = getattr(c, name)
        if name == "upper_self" and value is None:
            continue
        low, high = c.ci.get(name, (math.nan, math.nan))
        if name in SHARES:
            shown, bounds = percent(value), interval((100 * low, 100 * high), digits=1)
            bounds = f"{bounds} %" if bounds else ""
        else:
            shown, bounds = fraction(value), interval((low, high))
        rows.append([Cell(title, note=meaning), shown, Cell(bounds, tone="quiet")])
    return rows


def groups_table(c: Comparison) -> Markup | None:
    """The groups by their change, worst first; None without groups."""
    if not c.groups:
        return None
    ordered = sorted(c.groups, key=lambda group: (group.cross - group.old_self, group.name))
    caption = "By group, largest loss first; ✗ or ✓ where the whole interval is below or above 0"
    if len(ordered) > SHOWN_GROUPS:
        caption += f" ({SHOWN_GROUPS} of {len(ordered)} groups)"
    return html_table(
        ["Group", "queries", "old self", "cross", "cross − old", "lose a hit", "win a hit"],
        [_group_row(group) for group in ordered[:SHOWN_GROUPS]],
        caption=caption,
    )


def _group_row(group: Group) -> list[str | Cell]:
    low, high = group.cross_minus_old_ci
    tone: Tone = "good" if low > 0 else "bad" if high < 0 else ""
    mark = {"good": " ✓", "bad": " ✗"}.get(tone, "")
    gap = signed(group.cross - group.old_self) + mark
    return [
        group.name,
        count(group.n_queries),
        fraction(group.old_self),
        fraction(group.cross),
        Cell(gap, note=interval((low, high)), tone=tone),
        percent(group.negative_flips),
        percent(group.positive_flips),
    ]
