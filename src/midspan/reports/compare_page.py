"""The page of `midspan compare`: would this upgrade help, and whom would it hurt?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from midspan.evaluation import Comparison, Curve, bootstrap_ci, chain_summary
from midspan.reports import svg
from midspan.reports.compare_tables import gains_table, groups_table, scores_table
from midspan.reports.images import ImageArray, ThumbnailSource
from midspan.reports.matrix_plot import matrix_plot
from midspan.reports.numbers import amount, fraction, interval, metric_name, percent, signed
from midspan.reports.page import render, write_text
from midspan.reports.plots import Dot, curve_plot, roc_plot, score_dots
from midspan.reports.strips import Album, QueryRow, first_results, labels_of
from midspan.reports.verdict import PageVerdict, Tile
from midspan.spaces import IntArray

if TYPE_CHECKING:
    from midspan.evaluation.verification import Roc

PER_CLASS = 2  # shown lost queries of one class
DIRECTIONS = {
    "direct": "New queries and old vectors are compared as they are.",
    "forward": "The old gallery is mapped into the new space by a bridge.",
    "backward": "New queries are mapped into the old space by a bridge.",
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """Scores (T, T) of the queries of each encoder on the gallery of each, oldest first."""

    values: npt.NDArray[np.floating[Any]]
    encoders: Sequence[str]


def compare_page(
    comparison: Comparison,
    path: str | Path,
    *,
    images: ImageArray | ThumbnailSource | None = None,
    curves: Mapping[str, Curve] | None = None,
    rocs: Mapping[str, Roc] | None = None,
    matrix: Matrix | None = None,
    exclude_column: str | None = None,
    command: str = "",
    rows: int = 8,
    top: int = 5,
) -> Path:
    """Write the page; parts for which nothing is given are left out.

    images: (N, H, W, C) uint8 by row of the compared items, or an image set that knows their ids.
    curves, rocs: by the name they shall have in the legend.
    exclude_column: as it was given to `compare`, so that the shown results leave the same items
        out. rows, top: how many lost queries are shown, and how many results of each.
    """
    c = comparison
    metric = metric_name(c.metric)
    lost = negative_flips(c)
    verdict = compare_verdict(c)
    difference = c.per_query["cross"] - c.per_query["old_self"]
    context = {
        "title": f"{verdict.headline} · midspan compare",
        "eyebrow": f"midspan compare · {c.old.space.name} → {_new_name(c)}",
        "verdict": verdict,
        "metric": metric,
        "tiles": _tiles(c),
        "scores": scores_table(c),
        "gains": gains_table(c),
        "score_plot": _score_plot(c),
        "better": int((difference > 0).sum()),
        "worse": int((difference < 0).sum()),
        "equal": int((difference == 0).sum()),
        "unanswered": int(np.isnan(difference).sum()),
        "curves": curves or {},
        "curve_plot": _curve_plot(c, curves) if curves else "",
        "roc_plot": roc_plot(rocs, title="Verification: true against false accept rate")
        if rocs
        else "",
        "matrix_plot": _matrix_plot(matrix, metric) if matrix else "",
        "chain": chain_summary(matrix.values) if matrix else None,
        "groups": groups_table(c),
        "lost": len(lost),
        "per_class": PER_CLASS,
        "rows": _lost_rows(
            c,
            _varied(lost, labels_of(c.old))[:rows],
            images=images,
            exclude_column=exclude_column,
            top=top,
        ),
        "facts": _facts(c),
        "command": command,
    }
    return write_text(render("compare.html.j2", context), path)


def compare_verdict(c: Comparison) -> PageVerdict:
    """The criterion in words, with the interval of the difference and what users would notice."""
    metric = metric_name(c.metric)
    both = f"{metric} {fraction(c.cross)}, where the old encoder itself has {fraction(c.old_self)}"
    gap = c.cross - c.old_self
    if c.compatible:
        headline = f"The new encoder can search the old gallery: {both}."
    else:
        headline = f"The new encoder falls short on the old gallery by {amount(gap)}: {both}."
    low, high = difference_ci(c)
    certain = "" if low > 0 or high < 0 else ", which includes 0: more queries would decide"
    sentence = (
        f"The difference is {signed(gap)} (95 % interval {interval((low, high))}{certain}). "
        f"{percent(c.negative_flips)} of the queries lose their first hit and "
        f"{percent(c.positive_flips)} win one."
    )
    return PageVerdict(holds=c.compatible, headline=headline, sentence=sentence)


def difference_ci(c: Comparison) -> tuple[float, float]:
    """95 % of cross − old self, query by query, so tighter than the two intervals suggest."""
    return bootstrap_ci(
        c.per_query["cross"], c.per_query["old_self"], statistic=lambda cross, old: cross - old
    )


def negative_flips(c: Comparison) -> IntArray:
    """Rows of the queries that lose their first hit, the largest drop of the metric first."""
    rows = np.flatnonzero((c.hits["old_self"] == 1) & (c.hits["cross"] == 0))
    drop = c.per_query["old_self"][rows] - c.per_query["cross"][rows]
    return rows[np.argsort(-drop, kind="stable")].astype(np.int64)


def _varied(rows: IntArray, labels: npt.NDArray[Any]) -> IntArray:
    """The same order with at most PER_CLASS rows of a class, lest one class fill the page."""
    seen: Counter[Any] = Counter()
    kept = []
    for row, name in zip(rows.tolist(), labels[rows].tolist(), strict=True):
        seen[name] += 1
        if seen[name] <= PER_CLASS:
            kept.append(row)
    return np.array(kept, dtype=np.int64)


def _tiles(c: Comparison) -> list[Tile]:
    mark = "✓" if c.compatible else "✗"
    cross, end = signed(c.cross - c.old_self), signed(c.new_self - c.old_self)
    tiles = [
        Tile("today", fraction(c.old_self), "old queries, old gallery", "old"),
        Tile("first day", fraction(c.cross), f"new queries, old gallery: {cross} {mark}", "new"),
        Tile("last day", fraction(c.new_self), f"new queries, new gallery: {end}", "new"),
    ]
    if c.upper_self is not None:
        upper = signed(c.upper_self - c.old_self)
        tiles.append(
            Tile("upper bound", fraction(c.upper_self), f"trained alone: {upper}", "other")
        )
    return tiles


def _score_plot(c: Comparison) -> str:
    names = (
        ("old_self", "today: old on old", svg.OLD, True),
        ("cross", "first day: new on old", svg.NEW, False),
        ("new_self", "last day: new on new", svg.NEW, True),
        ("upper_self", "upper bound: alone on itself", svg.OTHER, True),
    )
    dots = [
        Dot(text, getattr(c, name), c.ci.get(name), colour, hollow)
        for name, text, colour, hollow in names
        if getattr(c, name) is not None
    ]
    metric = metric_name(c.metric)
    return score_dots(
        dots,
        reference=c.old_self,
        reference_name="old self",
        metric=metric,
        title=f"{metric} before, at the start and at the end of the upgrade; the table has the "
        "same numbers",
    )


def _curve_plot(c: Comparison, curves: Mapping[str, Curve]) -> str:
    same = {curve.metric for curve in curves.values()} == {c.metric}
    return curve_plot(
        curves,
        title="Score against the part of the gallery that has new vectors",
        reference=("old self", c.old_self) if same else None,
    )


def _matrix_plot(matrix: Matrix, metric: str) -> str:
    return matrix_plot(
        matrix.values,
        matrix.encoders,
        title=f"{metric} of the queries of each encoder on the gallery of each",
    )


def _lost_rows(
    c: Comparison,
    lost: IntArray,
    *,
    images: ImageArray | ThumbnailSource | None,
    exclude_column: str | None,
    top: int,
) -> list[QueryRow]:
    if len(lost) == 0:
        return []
    album = Album(c.old, images)
    same = None if exclude_column is None else c.old.columns[exclude_column]
    before, after = (
        first_results(
            queries.vectors[lost],
            gallery.vectors,
            own=lost,
            top=top,
            metric=gallery.space.metric,
            leave_out=same,
        )
        for queries, gallery in ((c.old, c.old), (c.query, c.gallery))
    )
    values, metric = c.per_query, "AP" if c.metric == "map" else metric_name(c.metric)
    return [
        QueryRow(
            query=album.picture(row),
            strips=(
                album.results("before: old encoder", tone="old", query=row, ranked=old),
                album.results("now: new queries, old gallery", tone="new", query=row, ranked=new),
            ),
            note=f"{metric} {fraction(values['old_self'][row], digits=2)} → "
            f"{fraction(values['cross'][row], digits=2)}",
        )
        for row, old, new in zip(lost.tolist(), before, after, strict=True)
    ]


def _facts(c: Comparison) -> dict[str, str]:
    spaces = {"old space": c.old.space, "query space": c.query.space}
    if not c.gallery.space.same_as(c.old.space):
        spaces["searched gallery"] = c.gallery.space
    return {
        "items": f"{len(c.ids):,} of {len(np.unique(labels_of(c.old))):,} classes",
        "comparison": DIRECTIONS.get(c.direction, c.direction),
        **{name: str(space) for name, space in spaces.items()},
    }


def _new_name(c: Comparison) -> str:
    """With a backward bridge the queries are in the old space, and the name says so."""
    name = c.query.space.name
    return name if c.direction != "backward" else f"{name} (by a bridge)"
