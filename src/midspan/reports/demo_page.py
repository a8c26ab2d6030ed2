"""The page of `midspan demo`: why only the compatible encoder can search the old gallery."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.reports import svg
from midspan.reports.images import check_images
from midspan.reports.live_upgrade import LiveUpgrade, upgrade_plot, upgrade_tiles, upgrade_words
from midspan.reports.numbers import (
    MISSING,
    amount,
    fraction,
    interval,
    metric_name,
    signed,
    times,
)
from midspan.reports.page import render, write_text
from midspan.reports.plots import Dot, score_dots
from midspan.reports.projection import Projection, project
from midspan.reports.projection_plot import projection_plot, shared_limits
from midspan.reports.strips import Album, QueryRow, first_results, labels_of, pick_queries
from midspan.reports.tables import Cell, Tone, html_table
from midspan.reports.verdict import PageVerdict, Tile
from midspan.spaces import Embeddings

SCORES = (
    "old_self",
    "new_self",
    "independent_self",
    "new_cross",
    "independent_cross",
    "random_cross",
)
NEAR_RANDOM = 0.1  # share of the way from random vectors to old self


@dataclass(frozen=True)
class DemoResult:
    """All that the page shows. The three embeddings are of the same test items, by row."""

    data_name: str
    data_note: str  # what images, how many classes and images, what the old encoder saw
    metric: str  # "map"
    old: Embeddings
    new: Embeddings
    independent: Embeddings
    images: npt.NDArray[np.uint8]  # (N, H, W, C)
    scores: Mapping[str, float]  # SCORES, as fractions
    intervals: Mapping[str, tuple[float, float]]  # 95 % of some or all of them
    method: str  # "bct"
    seconds: Mapping[str, float]  # by step
    command: str
    upgrade: LiveUpgrade | None = None

    def __post_init__(self) -> None:
        missing = [name for name in SCORES if name not in self.scores]
        if missing:
            raise EvaluationError(f"the page of the demo requires the scores {', '.join(missing)}")
        labels_of(self.old)
        for name, other in (("new", self.new), ("independent", self.independent)):
            if not np.array_equal(self.old.ids, other.ids):
                raise EvaluationError(
                    f"old and {name} embeddings are not of the same items in the same order; "
                    "bring them in line with old.paired_with(…)"
                )
            if other.vectors.shape != self.old.vectors.shape:
                raise EvaluationError(
                    f"{name} vectors are {other.vectors.shape[1]}-d, old ones "
                    f"{self.old.vectors.shape[1]}-d; the demo compares them as they are"
                )
        check_images(self.images, count=len(self.old))


def demo_page(
    result: DemoResult, path: Path, *, rows: int = 8, top: int = 10, seed: int = 0
) -> Path:
    """Write the page: `rows` queries drawn by `seed`, each with its first `top` results."""
    projection = project(
        result.old.vectors,
        {"new": result.new.vectors, "independent": result.independent.vectors},
        labels_of(result.old),
        seed=seed,
    )
    album = Album(result.old, result.images)
    shown = _query_rows(result, album, rows=rows, top=top, seed=seed)
    verdict = demo_verdict(result)
    context = {
        "title": f"{verdict.headline} · midspan demo",
        "eyebrow": f"midspan demo · {result.data_name}",
        "verdict": verdict,
        "result": result,
        "metric": metric_name(result.metric),
        "tiles": _tiles(result),
        "table": _table(result),
        "score_plot": _score_plot(result),
        "rows": shown,
        "tallies": _tallies(shown),
        "seed": seed,
        "panels": _panels(projection),
        "projection": projection,
        "class_count": len(np.unique(labels_of(result.old))),
        "legend": [
            (album.picture(int(projection.rows[projection.classes == c][0])), colour(c))
            for c in range(len(projection.labels))
        ],
        "total_seconds": sum(result.seconds.values()),
        "upgrade": result.upgrade,
    }
    if result.upgrade is not None:
        context |= {
            "upgrade_metric": metric_name(result.upgrade.metric),
            "upgrade_tiles": upgrade_tiles(result.upgrade),
            "upgrade_plot": upgrade_plot(result.upgrade),
            "upgrade_words": upgrade_words(result.upgrade),
        }
    return write_text(render("demo.html.j2", context), path)


def demo_verdict(result: DemoResult) -> PageVerdict:
    """Does the compatible encoder reach on the old gallery what the old one reached?"""
    scores, metric = result.scores, metric_name(result.metric)
    old, cross = scores["old_self"], scores["new_cross"]
    holds = cross >= old
    both = f"{metric} {fraction(cross)}, where the old encoder itself had {fraction(old)}"
    if holds:
        headline = f"The new encoder can search the old gallery: {both}."
    else:
        headline = (
            f"The new encoder falls short on the old gallery by {amount(old - cross)}: {both}."
        )
    foreign, random = scores["independent_cross"], scores["random_cross"]
    sentence = (
        f"No stored vector was touched. A new encoder trained without regard for the old one gets "
        f"{fraction(foreign)} from the same gallery; random vectors get {fraction(random)}."
    )
    if foreign - random <= NEAR_RANDOM * (old - random):
        sentence += " To the old gallery, its vectors are noise."
    return PageVerdict(holds=holds, headline=headline, sentence=sentence)


def colour(number: int) -> str:
    """CSS colour of a class; the fall-back serves light pages, where no variable is set."""
    value = svg.CLASSES[number % len(svg.CLASSES)]
    return f"var({svg.VARIABLES[value]}, {value})"


def _tiles(result: DemoResult) -> list[Tile]:
    scores = result.scores
    old = scores["old_self"]

    def note(value: float) -> str:
        mark = "✓" if value >= old else "✗"
        return f"{mark} {signed(value - old)} against the old encoder"

    return [
        Tile(
            name="the old encoder",
            value=fraction(old),
            note="the bar to reach",
            tone="old",
        ),
        Tile(
            name=f"the new, compatible encoder ({result.method})",
            value=fraction(scores["new_cross"]),
            note=note(scores["new_cross"]),
            tone="new",
        ),
        Tile(
            name="the new, independent encoder",
            value=fraction(scores["independent_cross"]),
            note=note(scores["independent_cross"]),
            tone="other",
        ),
    ]


def _table(result: DemoResult) -> Any:
    scores, old, random = result.scores, result.scores["old_self"], result.scores["random_cross"]

    def score(name: str) -> Cell:
        return Cell(fraction(scores[name]), note=interval(result.intervals.get(name)))

    def against_old(value: float) -> Cell:
        tone: Tone = "" if math.isnan(value) else "good" if value >= old else "bad"
        mark = {"good": " ✓", "bad": " ✗"}.get(tone, "")
        return Cell(signed(value - old) + mark, tone=tone)

    def cross_row(title: str, name: str) -> list[str | Cell]:
        cross = scores[f"{name}_cross"]
        return [
            title,
            score(f"{name}_self"),
            score(f"{name}_cross"),
            against_old(cross),
            times(cross, random),
        ]

    empty = Cell(MISSING, tone="empty")
    return html_table(
        ["Encoder", "self", "cross, on the old gallery", "cross − old self", "cross ÷ random"],
        [
            ["old", score("old_self"), empty, empty, empty],
            cross_row(f"new, compatible ({result.method})", "new"),
            cross_row("new, independent", "independent"),
        ],
        footer=[["random vectors", empty, score("random_cross"), empty, "1.0×"]],
        caption=f"{metric_name(result.metric)} on the test items"
        + (", with 95 % bootstrap intervals" if result.intervals else ""),
    )


def _score_plot(result: DemoResult) -> str:
    def dot(text: str, name: str, shade: str, *, hollow: bool = False) -> Dot:
        bounds = result.intervals.get(name)
        return Dot(text, result.scores[name], bounds, shade, hollow)

    metric = metric_name(result.metric)
    return score_dots(
        [
            dot("old encoder on its own gallery", "old_self", svg.OLD, hollow=True),
            dot("compatible on its own gallery", "new_self", svg.NEW, hollow=True),
            dot("compatible on the old gallery", "new_cross", svg.NEW),
            dot("independent on its own gallery", "independent_self", svg.OTHER, hollow=True),
            dot("independent on the old gallery", "independent_cross", svg.OTHER),
            dot("random on the old gallery", "random_cross", svg.MUTED),
        ],
        reference=result.scores["old_self"],
        reference_name="old self",
        metric=metric,
        title=f"{metric} of each encoder on its own and on the old gallery; the table has the "
        "same numbers",
    )


def _query_rows(
    result: DemoResult, album: Album, *, rows: int, top: int, seed: int
) -> list[QueryRow]:
    queries = pick_queries(album.labels, count=rows, seed=seed)
    if len(queries) == 0:
        return []
    compatible, independent = (
        first_results(
            encoder.vectors[queries],
            result.old.vectors,
            own=queries,
            top=top,
            metric=result.old.space.metric,
        )
        for encoder in (result.new, result.independent)
    )
    return [
        QueryRow(
            query=album.picture(query),
            strips=(
                album.results("compatible encoder", tone="new", query=query, ranked=near),
                album.results("independent encoder", tone="other", query=query, ranked=far),
            ),
        )
        for query, near, far in zip(queries.tolist(), compatible, independent, strict=True)
    ]


def _tallies(rows: list[QueryRow]) -> list[tuple[int, int]]:
    """(right, all) over the rows, for each encoder."""
    return [
        (sum(strip.right for strip in strips), sum(len(strip.hits) for strip in strips))
        for strips in zip(*(row.strips for row in rows), strict=True)
    ]


def _panels(projection: Projection) -> list[tuple[str, str, str]]:
    """(heading, what to see, plot) of the two panels, on the same axes."""
    limits = shared_limits(projection.old, *projection.new.values())
    headings = {"new": "Old and compatible", "independent": "Old and independent"}
    return [
        (
            headings[name],
            f"{projection.at_home(name)} of {len(points)} crosses lie nearest to the middle of "
            "their own colour's circles.",
            projection_plot(
                projection.old,
                points,
                projection.classes,
                limits=limits,
                title=f"{len(points)} items of {len(projection.labels)} classes in the plane of "
                f"the old space: old vectors as circles, {name} vectors as crosses",
                name=f"space-{name}",
            ),
        )
        for name, points in projection.new.items()
    ]
