"""Confidence of each sub-embedding, as medians with the range of most items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.reports.plots import SERIES
from midspan.reports.svg import drawing, label, to_svg

MARKERS = ("o", "s", "^", "D")


def confidence_plot(sets: Mapping[str, npt.NDArray[Any]], *, title: str, name: str) -> str:
    """Of each set (N, K): 10, 50 and 90 % of the confidences of each sub-embedding."""
    with drawing(width=380, height=300) as (figure, axes):
        for number, (series, values) in enumerate(sets.items()):
            low, middle, high = np.quantile(values, (0.1, 0.5, 0.9), axis=0)  # (K,) each
            shift = (number - (len(sets) - 1) / 2) * 0.7 / len(sets)
            x = np.arange(1, len(middle) + 1) + shift
            colour = SERIES[number % len(SERIES)]
            axes.vlines(x, low, high, color=colour, linewidth=2.5, alpha=0.5)
            axes.plot(
                x,
                middle,
                linestyle="none",
                marker=MARKERS[number % len(MARKERS)],
                markersize=5.5,
                color=colour,
                label=label(series),
                gid=f"set-{number}",
            )
        axes.set(xlabel="sub-embedding", ylabel="confidence")
        axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
        axes.grid(visible=True, axis="y", linewidth=0.8)
        if len(sets) > 1:
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
        return to_svg(figure, name=name, title=title)
