"""The plots of our pages, each a function from numbers to one SVG element.

Drawn narrow (about 380 CSS pixels), so that the text stays readable on a phone; series differ in
line style or marker too, never in colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from midspan.reports.numbers import fraction, metric_name
from midspan.reports.svg import (
    CLASSES,
    INK,
    LINE,
    MUTED,
    NEW,
    OLD,
    OTHER,
    PAPER,
    drawing,
    label,
    to_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from midspan.evaluation.curves import Curve
    from midspan.evaluation.verification import Roc

SERIES = (NEW, OTHER, OLD, *CLASSES[2:])
STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True)
class Dot:
    """One line of a dot plot."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    colour: str = INK
    hollow: bool = False  # e.g. self scores, next to filled cross scores


def score_dots(
    dots: Sequence[Dot],
    *,
    reference: float,
    reference_name: str,
    metric: str,
    title: str,
    name: str = "scores",
) -> str:
    """Scores from 0 to 1 on one axis with their intervals, against a mark for the reference."""
    step = 40
    with drawing(width=380, height=step * len(dots) + 62) as (figure, axes):
        rows = np.arange(len(dots))
        # Interrupted at the names, so that it never crosses a word.
        marks = np.full(len(dots), reference)
        axes.vlines(marks, rows - 0.2, rows + 0.26, color=INK, linewidth=1.4, zorder=1)
        for row, dot in enumerate(dots):
            axes.text(0, row - 0.24, label(dot.name, longest=52), color=INK, va="bottom")
            axes.plot([0, 1], [row, row], color=LINE, linewidth=1, zorder=0)
            _dot(axes, dot, row=row)
        axes.set(xlim=(-0.02, 1.02), ylim=(len(dots) - 0.5, -1.15), yticks=[])
        near_left = reference < 0.5
        axes.annotate(
            f"{label(reference_name)} {fraction(reference)}",
            (reference, -0.95),
            ha="left" if near_left else "right",
            va="center",
            color=MUTED,
            fontsize=11,
        )
        axes.set_xlabel(label(metric))
        _only_bottom_axis(axes)
        return to_svg(figure, name=name, title=title)


def roc_plot(rocs: Mapping[str, Roc], *, title: str, name: str = "roc", points: int = 400) -> str:
    """True accept rate against false accept rate, the latter on a log axis."""
    with drawing(width=380, height=300) as (figure, axes):
        shown = {series: curve.compressed(points) for series, curve in rocs.items()}
        lowest = min((_lowest_positive(curve.far) for curve in shown.values()), default=1.0)
        for number, (series, curve) in enumerate(shown.items()):
            positive = curve.far > 0
            # A log axis has no zero: the best TAR without a false accept is at the left edge.
            free = curve.tar[~positive].max(initial=0.0)
            far = np.concatenate([[lowest], curve.far[positive]])
            tar = np.concatenate([[free], curve.tar[positive]])
            _line(axes, far, tar, number=number, series=series, steps=True)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_power_of_ten)
        axes.xaxis.set_minor_formatter("")
        axes.set(xlim=(min(lowest, 0.1), 1), ylim=(-0.02, 1.02))
        axes.set(xlabel="false accept rate", ylabel="true accept rate")
        _grid_and_legend(axes, many=len(rocs) > 1)
        return to_svg(figure, name=name, title=title)


def curve_plot(
    curves: Mapping[str, Curve],
    *,
    title: str,
    name: str = "curve",
    reference: tuple[str, float] | None = None,
) -> str:
    """Backfill curves: the metric against the share of the gallery that has new vectors."""
    metrics = {metric_name(curve.metric) for curve in curves.values()}
    if len(metrics) > 1:
        raise ValueError(f"one axis cannot show {' and '.join(sorted(metrics))}")
    return line_plot(
        {series: (curve.fractions, curve.values) for series, curve in curves.items()},
        x_name="part of the gallery with new vectors",
        y_name="".join(metrics),
        title=title,
        name=name,
        reference=reference,
    )


def line_plot(
    lines: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]],
    *,
    x_name: str,
    y_name: str,
    title: str,
    name: str,
    reference: tuple[str, float] | None = None,
) -> str:
    """Lines by name, each (x, y), with a dot at every point; an optional level to compare with."""
    with drawing(width=380, height=300) as (figure, axes):
        if reference is not None:
            axes.axhline(reference[1], color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
            axes.annotate(
                f"{label(reference[0])} {fraction(reference[1])}",
                (1, reference[1]),
                xycoords=("axes fraction", "data"),
                xytext=(0, -5),
                textcoords="offset points",
                ha="right",
                va="top",
                color=MUTED,
                fontsize=11,
            )
        for number, (series, (x, y)) in enumerate(lines.items()):
            _line(axes, np.asarray(x), np.asarray(y), number=number, series=series, steps=False)
        axes.set(xlabel=label(x_name), ylabel=label(y_name))
        axes.margins(x=0.02, y=0.12)
        _grid_and_legend(axes, many=len(lines) > 1)
        return to_svg(figure, name=name, title=title)


# ---- private ------------------------------------------------------------------------------------


def _dot(axes: Axes, dot: Dot, *, row: int) -> None:
    if dot.interval is not None and np.isfinite(dot.interval).all():
        low, high = dot.interval
        axes.plot([low, high], [row, row], color=dot.colour, linewidth=3, alpha=0.45)
    if not np.isfinite(dot.value):
        return
    axes.plot(
        [dot.value],
        [row],
        marker="o",
        markersize=9,
        markerfacecolor=PAPER if dot.hollow else dot.colour,
        markeredgecolor=dot.colour,
        markeredgewidth=2,
        linestyle="none",
        gid=f"dot-{row}",
    )
    axes.annotate(
        fraction(dot.value),
        (1.03, row),
        va="center",
        color=dot.colour,
        fontweight="bold",
        annotation_clip=False,
    )


def _line(
    axes: Axes,
    x: npt.NDArray[np.floating],
    y: npt.NDArray[np.floating],
    *,
    number: int,
    series: str,
    steps: bool,
) -> None:
    axes.plot(
        x,
        y,
        color=SERIES[number % len(SERIES)],
        linestyle=STYLES[number % len(STYLES)],
        linewidth=2,
        marker=None if steps else "o",
        markersize=4.5,
        drawstyle="steps-post" if steps else "default",
        label=label(series),
        gid=f"line-{number}",
    )


def _lowest_positive(far: npt.NDArray[np.float64]) -> float:
    return float(far[far > 0].min(initial=1.0))


def _power_of_ten(value: float, _place: float) -> str:
    """matplotlib's own would be written in TeX, which our text does not go through."""
    power = str(round(np.log10(value)))
    return "10" + power.translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _only_bottom_axis(axes: Axes) -> None:
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="x", length=3)


def _grid_and_legend(axes: Axes, *, many: bool) -> None:
    axes.grid(visible=True, linewidth=0.8)
    if many:
        axes.legend(
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=2,
            frameon=False,
            handlelength=2.6,
        )
