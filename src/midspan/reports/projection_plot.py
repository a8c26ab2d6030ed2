"""The plot of a projection: where old and new vectors of the same items are."""

from __future__ import annotations

import numpy as np

from midspan.reports.projection import Points
from midspan.reports.svg import CLASSES, MUTED, drawing, to_svg
from midspan.spaces import IntArray


def projection_plot(
    old: Points,
    new: Points,
    classes: IntArray,
    *,
    limits: tuple[float, float, float, float],
    title: str,
    name: str,
) -> str:
    """One panel: old vectors as circles, the same items' new ones as crosses, hue = class.

    A hairline joins the two of each item. `limits` (left, right, bottom, top) let two panels
    share their axes.
    """
    with drawing(width=380, height=350) as (figure, axes):
        lift_pen = np.full(len(old), np.nan)
        ways = np.stack([old, new, np.stack([lift_pen, lift_pen], axis=1)], axis=1)  # (P, 3, 2)
        axes.plot(*ways.reshape(-1, 2).T, color=MUTED, linewidth=0.6, alpha=0.35, gid="ways")
        for number in np.unique(classes):
            colour = CLASSES[number % len(CLASSES)]
            member = classes == number
            axes.plot(
                *old[member].T,
                linestyle="none",
                marker="o",
                markersize=6.5,
                markerfacecolor="none",
                markeredgecolor=colour,
                markeredgewidth=1.1,
                alpha=0.75,
                gid=f"old-{number}",
            )
            axes.plot(
                *new[member].T,
                linestyle="none",
                marker="x",
                markersize=5,
                markeredgecolor=colour,
                markeredgewidth=1.5,
                gid=f"new-{number}",
            )
        axes.set(xlim=limits[:2], ylim=limits[2:], xticks=[], yticks=[], aspect="equal")
        for side in axes.spines.values():
            side.set_visible(False)
        return to_svg(figure, name=name, title=title)


def shared_limits(*panels: Points, margin: float = 0.06) -> tuple[float, float, float, float]:
    """(left, right, bottom, top) that hold every point of every panel."""
    points = np.concatenate(panels)
    low, high = points.min(axis=0), points.max(axis=0)
    pad = margin * np.maximum(high - low, 1e-9)
    (left, bottom), (right, top) = (low - pad).tolist(), (high + pad).tolist()
    return left, right, bottom, top
