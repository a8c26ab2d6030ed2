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

from midspan.reports.numbers import fraction
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
    hollow: bool = False  # e.g. self scores, beside filled cross scores


def score_dots(
    dots: Sequence[Dot],
    *,
    reference: float,
    reference_name: str,
    metric: str,
    title: str,
    name: str = "scores",
) -> str:
    """Scores from 0 to 1 on one axis with their intervals, against the reference as a line."""
    step = 40
    with drawing(width=380, height=step * len(dots) + 62) as (figure, axes):
        axes.axvline(reference, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        for row, dot in enumerate(dots):
            axes.text(0, row - 0.24, label(dot.name, longest=52), color=INK, va="bottom")
            axes.plot([0, 1], [row, row], color=LINE, linewidth=1, zorder=0)
            _dot(axes, dot, row=row)
        axes.set(xlim=(-0.02, 1.02), ylim=(len(dots) - 0.5, -1.15), yticks=[])
        near_left = reference < 0.5
        axes.annotate(
            f"{label(reference_name)} {fraction(reference)}",
            (reference, -0.85),
            xytext=(6 if near_left else -6, 0),
            textcoords="offset points",
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
            # A log axis has no zero: the best TAR without a false accept stands at the left edge.
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


def matrix_plot(
    values: npt.NDArray[np.floating],
    names: Sequence[str],
    *,
    title: str,
    name: str = "matrix",
) -> str:
    """Score of each query encoder (row) on each gallery (column), encoders from old to new.

    Below the diagonal, where a newer encoder searches an older gallery, ✓ or ✗ says whether it
    scores above that gallery's own encoder.
    """
    count = len(names)
    if values.shape != (count, count):
        raise ValueError(f"a matrix of shape {values.shape} for {count} encoders")
    cell = max(64, min(110, 330 // max(count, 1)))
    with drawing(width=cell * count + 120, height=int(cell * 0.62) * count + 70) as (figure, axes):
        from matplotlib.patches import Rectangle

        top = np.nanmax(values) if np.isfinite(values).any() else 1.0
        for (row, column), value in np.ndenumerate(values):
            strength = max(float(value) / top, 0.0) if np.isfinite(value) and top > 0 else 0.0
            axes.add_patch(
                Rectangle(
                    (column + 0.03, row + 0.03),
                    0.94,
                    0.94,
                    facecolor=NEW,
                    edgecolor="none",
                    alpha=0.05 + 0.45 * strength,
                    gid=f"cell-{row}-{column}",
                )
            )
            mark = ""
            if row > column and np.isfinite(value):
                mark = " ✓" if value > values[column, column] else " ✗"
            axes.text(
                column + 0.5,
                row + 0.5,
                fraction(float(value)) + mark,
                ha="center",
                va="center",
                fontweight="bold" if row == column else "normal",
            )
        shown = [label(each, longest=16) for each in names]
        axes.set(xlim=(0, count), ylim=(count, 0))
        axes.set_xticks(np.arange(count) + 0.5, shown)
        axes.set_yticks(np.arange(count) + 0.5, shown)
        axes.set(xlabel="gallery of", ylabel="queries by")
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
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
