"""The plots of the benchmark page: self against cross, and the backfill of each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from midspan.reports.bench_summary import UPPER, MethodSummary
from midspan.reports.numbers import fraction
from midspan.reports.plots import STYLES
from midspan.reports.svg import CLASSES, INK, MUTED, OTHER, drawing, label, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")


def self_cross_plot(entries: Sequence[MethodSummary], *, metric: str, title: str, name: str) -> str:
    """Each method by new self (right) and cross (up), between old self and the upper bound."""
    shown = [e for e in entries if e.group == "method" and e.method != UPPER]
    shown = [e for e in shown if np.isfinite(e.mean["cross"])]
    old, upper = entries[0].mean["old_self"], entries[0].mean["upper_self"]
    with drawing(width=380, height=330) as (figure, axes):
        axes.axhline(old, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        axes.axvline(upper, color=OTHER, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
        for number, entry in enumerate(shown):
            axes.errorbar(
                entry.mean["new_self"],
                entry.mean["cross"],
                xerr=np.nan_to_num(entry.spread["new_self"]),
                yerr=np.nan_to_num(entry.spread["cross"]),
                marker=MARKERS[number % len(MARKERS)],
                markersize=9,
                color=CLASSES[number % len(CLASSES)],
                linestyle="none",
                elinewidth=1,
                label=label(entry.method),
            )
        axes.annotate(
            f"old self {fraction(old)}",
            (0, old),
            xycoords=("axes fraction", "data"),
            xytext=(3, 4),
            textcoords="offset points",
            color=MUTED,
            fontsize=11,
        )
        axes.annotate(
            f"upper bound {fraction(upper)}",
            (upper, 0),
            xycoords=("data", "axes fraction"),
            xytext=(-4, 5),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="bottom",
            color=MUTED,
            fontsize=11,
        )
        axes.set(xlabel=f"self: new on new, {label(metric)}", ylabel="cross: new on old")
        axes.margins(0.14)
        _legend(axes)
        return to_svg(figure, name=name, title=title)


def backfill_plot(
    entries: Sequence[MethodSummary],
    fractions: Sequence[float],
    *,
    metric: str,
    title: str,
    name: str,
) -> str:
    """The score against the part of the gallery that has new vectors, in random order."""
    shown = [e for e in entries if e.group == "method" and e.backfill]
    old = entries[0].mean["old_self"]
    with drawing(width=380, height=330) as (figure, axes):
        axes.axhline(old, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        number = 0
        for entry in shown:
            alone = entry.method == UPPER
            axes.plot(
                fractions,
                entry.backfill,
                color=MUTED if alone else CLASSES[number % len(CLASSES)],
                linestyle=":" if alone else STYLES[(number // len(CLASSES)) % len(STYLES)],
                linewidth=1.8,
                marker="" if alone else MARKERS[number % len(MARKERS)],
                markersize=5,
                label=label(entry.method),
            )
            number += not alone
        axes.set(xlabel="part of the gallery with new vectors", ylabel=label(metric))
        _legend(axes)
        return to_svg(figure, name=name, title=title)


def _legend(axes: Axes) -> None:
    axes.grid(visible=True, linewidth=0.8)
    if not axes.get_legend_handles_labels()[0]:
        return
    axes.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
        frameon=False,
        handlelength=1.8,
        columnspacing=1.0,
        fontsize=11,
    )
