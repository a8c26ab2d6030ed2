"""Revisited Oxford and Paris: 70 queries each; Easy, Medium and Hard.

    gnd_roxford5k.json or gnd_rparis6k.json
    {"imlist": [names], "qimlist": [names], "gnd": [{"easy": [rows], "hard": [rows],
      "junk": [rows], "bbx": [x, y, x, y]} for each query]}

The authors publish this as a pickle. A pickle runs code when it is read, so nothing here reads one:
convert it once, where you trust it (the error message has the command). Ids are the names.

Each image of the database is right, wrong or ignored for a query:

    setup     right          ignored
    easy      easy           junk, hard
    medium    easy, hard     junk
    hard      hard           junk, easy

Ignored ones are taken out of the ranking; queries without a right image are left out of the mean.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError, FormatError
from midspan.evaluation.protocols.listing import find, image_id, select
from midspan.evaluation.protocols.outcome import Outcome, by_part, mean_of_answered
from midspan.evaluation.ranking import parse_metric
from midspan.evaluation.ranks import relevant_ranks
from midspan.spaces import Embeddings, IntArray, StrArray

SETUPS = {  # right, ignored
    "easy": (("easy",), ("junk", "hard")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("junk", "easy")),
}

CONVERT = (
    "python -c \"import json, pickle, sys; json.dump(pickle.load(open(sys.argv[1], 'rb')), "
    "open(sys.argv[2], 'w'), default=lambda array: array.tolist())\" {pickle} {json}"
)


@dataclass(frozen=True, slots=True)
class GroundTruth:
    images: StrArray  # (G,) ids of the database
    queries: StrArray  # (Q,)
    boxes: npt.NDArray[np.float64]  # (Q, 4) crop of each query
    easy: tuple[IntArray, ...]  # rows of `images` for each query
    hard: tuple[IntArray, ...]
    junk: tuple[IntArray, ...]

    def rows(self, kinds: Sequence[str]) -> list[IntArray]:
        """For each query the rows of these kinds together."""
        parts = [getattr(self, kind) for kind in kinds]
        return [np.concatenate(own) for own in zip(*parts, strict=True)]


def load(root: Path, name: str) -> GroundTruth:
    """`name` is 'roxford5k' or 'rparis6k'."""
    root = Path(root)
    expected, published = f"gnd_{name}.json", f"gnd_{name}.pkl"
    for folder in (root, root / name):
        if not (folder / expected).is_file() and (folder / published).is_file():
            command = CONVERT.format(pickle=folder / published, json=folder / expected)
            raise FormatError(
                f"{folder / published} is a pickle, which may run any code when read; if you "
                f"trust it, convert it once: {command}"
            )
    path = find(root, expected, f"{name}/{expected}")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise FormatError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(raw, dict) or not {"imlist", "qimlist", "gnd"} <= raw.keys():
        raise FormatError(f"{path}: expected the keys imlist, qimlist and gnd")
    images, queries = _names(raw, "imlist", path), _names(raw, "qimlist", path)
    truth = raw["gnd"]
    if not isinstance(truth, list) or len(truth) != len(queries):
        raise FormatError(f"{path}: expected one entry of gnd for each of {len(queries)} queries")
    kinds: dict[str, list[IntArray]] = {"easy": [], "hard": [], "junk": []}
    boxes = []
    for number, entry in enumerate(truth):
        where = f"{path}: gnd[{number}]"
        if not isinstance(entry, dict):
            raise FormatError(f"{where}: expected easy, hard, junk and bbx, got {entry!r}")
        for kind, lists in kinds.items():
            lists.append(_rows(entry.get(kind), count=len(images), where=f"{where}.{kind}"))
        boxes.append(_box(entry.get("bbx"), where=where))
    return GroundTruth(
        images=images,
        queries=queries,
        boxes=np.array(boxes),
        easy=tuple(kinds["easy"]),
        hard=tuple(kinds["hard"]),
        junk=tuple(kinds["junk"]),
    )


@dataclass(frozen=True, kw_only=True)
class ROxford:
    """mAP and mP@1, 5, 10 of each setup, as published; names like 'medium:map_trapezoid'.

    The gallery may hold `distractors` beyond the list (R1M); otherwise only listed images count.
    """

    root: Path
    distractors: bool = False

    name: ClassVar[str] = "roxford5k"
    default_metrics: ClassVar[tuple[str, ...]] = ("map_trapezoid", "mp@1", "mp@5", "mp@10")

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        """Queries are the vectors of the cropped images."""
        truth = load(self.root, self.name)
        return evaluate(
            truth,
            query,
            gallery,
            metrics=metrics,
            direct=direct,
            distractors=self.distractors,
        )


@dataclass(frozen=True, kw_only=True)
class RParis:
    """As `ROxford`."""

    root: Path
    distractors: bool = False

    name: ClassVar[str] = "rparis6k"
    default_metrics: ClassVar[tuple[str, ...]] = ROxford.default_metrics

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        truth = load(self.root, self.name)
        return evaluate(
            truth,
            query,
            gallery,
            metrics=metrics,
            direct=direct,
            distractors=self.distractors,
        )


def evaluate(
    truth: GroundTruth,
    query: Embeddings,
    gallery: Embeddings | None,
    *,
    metrics: Sequence[str],
    direct: bool,
    distractors: bool,
) -> Outcome:
    """The whole database is ranked for each query and setup."""
    requested = [
        (setup, parse_metric(metric)) for setup, metric in by_part(metrics, parts=tuple(SETUPS))
    ]
    if distractors and gallery is None:
        raise EvaluationError(
            "distractors require a separate gallery; give one besides the queries"
        )
    gallery = query if gallery is None else gallery
    query = query.take(truth.queries)
    if not distractors:
        gallery = select(gallery, truth.images)
    row_of = gallery.rows_of(truth.images)
    values, per_query = {}, {}
    for setup in dict.fromkeys(setup for setup, _ in requested):
        right, ignored = SETUPS[setup]
        ranks, n = relevant_ranks(
            query,
            gallery,
            relevant=[row_of[rows] for rows in truth.rows(right)],
            ignore=[row_of[rows] for rows in truth.rows(ignored)],
            direct=direct,
        )
        for name, metric in ((f"{one}:{m.name}", m) for one, m in requested if one == setup):
            per_query[name] = metric.per_query(ranks, n)
            values[name] = mean_of_answered(per_query[name], what=name)
    return Outcome(values, per_query, n_queries=len(query), n_gallery=len(gallery))


def _names(raw: dict[str, Any], key: str, path: Path) -> StrArray:
    names = raw[key]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise FormatError(f"{path}: {key} is not a list of names")
    checked = [image_id(name, where=f"{path}: {key}") for name in names]
    if len(set(checked)) < len(checked):
        raise FormatError(f"{path}: {key} names an image twice")
    return np.array(checked, dtype=np.str_)


def _rows(value: Any, *, count: int, where: str) -> IntArray:
    whole = isinstance(value, list) and all(type(row) is int and 0 <= row < count for row in value)
    if not whole:
        raise FormatError(f"{where}: expected a list of rows below {count}, got {str(value)[:80]}")
    return np.array(value, dtype=np.int64)


def _box(value: Any, *, where: str) -> list[float]:
    try:
        box = [float(number) for number in value]
    except (TypeError, ValueError):
        box = []
    if len(box) != 4 or not np.isfinite(box).all():
        raise FormatError(f"{where}.bbx: expected four numbers, got {str(value)[:80]}")
    return box
