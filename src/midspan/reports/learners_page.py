"""The page of an embedding in parts: recall of each learner, confidences of the encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from midspan.errors import EvaluationError
from midspan.evaluation.learners import Learners, judge_learners, specialities
from midspan.reports.images import ImageArray, ThumbnailSource
from midspan.reports.learners_plots import confidence_plot
from midspan.reports.numbers import fraction
from midspan.reports.page import render, write_text
from midspan.reports.plots import line_plot
from midspan.reports.projection import project
from midspan.reports.projection_plot import projection_plot, shared_limits
from midspan.reports.strips import Album, Picture, labels_of
from midspan.reports.tables import Cell, html_table
from midspan.reports.verdict import PageVerdict
from midspan.spaces import Embeddings

CONFIDENCE, VARIANCE = "confidence", "variance"
SHOWN = 10  # images of a learner


@dataclass(frozen=True, slots=True)
class Special:
    """A query that one learner finds and others do not."""

    picture: Picture
    others: int  # learners that find it too


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    svg: str
    note: str


def learners_page(
    embeddings: Embeddings,
    path: str | Path,
    *,
    count: int,
    images: ImageArray | ThumbnailSource | None = None,
    baseline: Embeddings | None = None,
    degraded: Mapping[str, Sequence[Embeddings]] | None = None,
    command: str = "",
) -> Path:
    """Write the page of labelled test embeddings in `count` slices.

    baseline: the same items from an encoder without learners, cut into as many slices. degraded:
    by kind of damage, the same items from slight to heavy; with the columns confidence and
    variance (N, K) of `embed_judged`, here and in `embeddings`, the page shows how they follow.
    """
    judged = judge_learners(embeddings, count=count)
    plain = None if baseline is None else judge_learners(baseline, count=count)
    album = Album(embeddings, images)
    mean = float(judged.alone.mean())
    whole = float(judged.together[-1])
    note = "" if count < 2 else f" Correlation between learners: {fraction(judged.correlation)}."
    if plain is not None:
        note += f" Without learners: {fraction(float(plain.together[-1]))} as a whole" + (
            "." if count < 2 else f", correlation {fraction(plain.correlation)}."
        )
    context = {
        "title": f"{count} learners · {embeddings.space.name}",
        "eyebrow": f"midspan · {embeddings.space.name}",
        "verdict": PageVerdict(
            holds=plain is None or whole >= float(plain.together[-1]),
            headline=f"recall@1 {fraction(whole)} together, {fraction(mean)} alone on average.",
            sentence=f"{len(embeddings):,} test items, leave-one-out, {count} slices of "
            f"{embeddings.space.dim // count} dims.{note}",
        ),
        "recall": _recall_plot(judged, plain),
        "table": _table(judged, plain),
        "special": [(k + 1, _special(judged, album, learner=k)) for k in range(count) if count > 1],
        "panels": _panels(embeddings, degraded or {}),
        "command": command,
    }
    return write_text(render("learners.html.j2", context), path)


def _recall_plot(judged: Learners, plain: Learners | None) -> str:
    x = np.arange(1, len(judged.alone) + 1)
    lines = {"alone": (x, judged.alone), "the first m together": (x, judged.together)}
    if plain is not None:
        lines["alone, no learners"] = (x, plain.alone)
        lines["together, no learners"] = (x, plain.together)
    return line_plot(
        lines, x_name="learner, or m", y_name="recall@1", title="Recall by learner", name="recall"
    )


def _table(judged: Learners, plain: Learners | None) -> str:
    columns = ["learner", "alone", "up to it"]
    if plain is not None:
        columns += ["alone, no learners", "up to it, no learners"]
    rows: list[list[str | Cell]] = []
    for k in range(len(judged.alone)):
        values = [judged.alone[k], judged.together[k]]
        if plain is not None:
            values += [plain.alone[k], plain.together[k]]
        rows.append([str(k + 1), *(fraction(float(value)) for value in values)])
    return html_table(columns, rows, caption="recall@1 of the slices")


def _special(judged: Learners, album: Album, *, learner: int) -> list[Special]:
    rows = specialities(judged, learner=learner, limit=SHOWN)
    others = np.delete(judged.hits, learner, axis=0)
    return [
        Special(album.picture(int(row)), int(np.nansum(others[:, row]))) for row in rows.tolist()
    ]


def _panels(clean: Embeddings, degraded: Mapping[str, Sequence[Embeddings]]) -> list[Panel]:
    for kind, levels in degraded.items():
        for one in levels:
            if not np.array_equal(one.ids, clean.ids):
                raise EvaluationError(
                    f"the items of {kind!r} are not those of the clean set, in the same order; "
                    "embed damaged copies of the same images"
                )
    panels = []
    if CONFIDENCE in clean.columns:
        sets = {"clean": clean.columns[CONFIDENCE]}
        sets |= {kind: levels[-1].columns[CONFIDENCE] for kind, levels in degraded.items()}
        panels.append(
            Panel(
                "How sure it is of each sub-embedding",
                confidence_plot(sets, title="Confidence by sub-embedding", name="confidence"),
                "Median, and 10 to 90 % of the items, clean and under the heaviest damage.",
            )
        )
    for column, what in ((VARIANCE, "mean log variance"), (CONFIDENCE, "mean log confidence")):
        if column in clean.columns and degraded:
            panels.append(
                Panel(
                    f"{what.removeprefix('mean log ').capitalize()} against damage",
                    line_plot(
                        {
                            kind: _by_level([clean, *levels], column)
                            for kind, levels in degraded.items()
                        },
                        x_name="level of damage, 0 = clean",
                        y_name=what,
                        title=f"{what} by level of damage",
                        name=f"levels-{column}",
                    ),
                    "An encoder that knows its limits is less certain of damaged images.",
                )
            )
    return panels + _maps(clean, degraded)


def _by_level(levels: Sequence[Embeddings], column: str) -> tuple[list[int], list[float]]:
    return list(range(len(levels))), [float(np.log(e.columns[column]).mean()) for e in levels]


def _maps(clean: Embeddings, degraded: Mapping[str, Sequence[Embeddings]]) -> list[Panel]:
    """Each kind's heaviest damage on the plane of the clean classes."""
    if not degraded:
        return []
    shown = project(
        clean.vectors,
        {kind: levels[-1].vectors for kind, levels in degraded.items()},
        labels_of(clean),
    )
    limits = shared_limits(shown.old, *shown.new.values())
    return [
        Panel(
            f"Clean and damaged: {kind}",
            projection_plot(
                shown.old,
                points,
                shown.classes,
                limits=limits,
                title=f"Clean (circles) and damaged by {kind} (crosses)",
                name=f"map-{number}",
            ),
            f"Circles are clean, crosses damaged; {shown.at_home(kind)} of {len(points)} damaged "
            "items are still nearest to the centre of their own class.",
        )
        for number, (kind, points) in enumerate(shown.new.items())
    ]
