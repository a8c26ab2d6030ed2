"""The compatibility matrix of a chain of encoders, with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.reports.numbers import fraction
from midspan.reports.svg import NEW, drawing, label, to_svg


def matrix_plot(
    values: npt.NDArray[np.floating[Any]],
    names: Sequence[str],
    *,
    title: str,
    name: str = "matrix",
) -> str:
    """Score of each query encoder (row) on each gallery (column), encoders from old to new.

    Below the diagonal, where a newer encoder searches an older gallery, ✓ or ✗ says whether it
    scores above that gallery's own encoder.
    """
    from matplotlib.patches import Rectangle

    count = len(names)
    if values.shape != (count, count):
        raise ValueError(
            f"expected a matrix ({count}, {count}), one name for each encoder, got {values.shape}"
        )
    cell = max(64, min(110, 330 // max(count, 1)))
    with drawing(width=cell * count + 120, height=int(cell * 0.62) * count + 70) as (figure, axes):
        top = np.nanmax(values) if np.isfinite(values).any() else 1.0
        for (row, column), value in np.ndenumerate(values):
            if not np.isfinite(value):
                continue  # not measured: an older encoder on a newer gallery
            strength = max(float(value) / top, 0.0) if top > 0 else 0.0
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
            if row > column:
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
