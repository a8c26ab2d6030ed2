"""Market-1501, single query: find the person in other cameras.

    query/, bounding_box_test/, bounding_box_train/     0002_c1s1_000451_03.jpg
                                                        person, camera, sequence, frame, box

Ids are the paths below the root, labels the persons. In bounding_box_test person −1 is junk and
dropped; person 0 is a distractor and stays. For each query the gallery images of the same person
*and* the same camera are taken out. Without `root`: query and gallery embeddings with the columns
labels and cameras.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from midspan.errors import EvaluationError, FormatError
from midspan.evaluation import retrieval
from midspan.evaluation.protocols.listing import Items, items
from midspan.evaluation.protocols.outcome import Outcome, of_retrieval
from midspan.spaces import Embeddings

JUNK, DISTRACTOR = -1, 0
NAME = re.compile(r"(-1|\d{4})_c(\d)s\d_\d{6}_\d{2}\.jpg(?:\.jpg)?")  # a few end twice


@dataclass(frozen=True, slots=True)
class Persons:
    """Columns: labels (the person) and cameras (from 1)."""

    train: Items
    query: Items
    gallery: Items  # junk left out


def load(root: Path) -> Persons:
    return Persons(
        train=_load(root, "bounding_box_train"),
        query=_load(root, "query"),
        gallery=_load(root, "bounding_box_test"),
    )


@dataclass(frozen=True, kw_only=True)
class Market1501:
    """Plain mAP and CMC (recall@k) at 1, 5 and 10, as in today's tables.

    The data set's first toolbox computed the other AP: ask for 'map_trapezoid'.
    """

    root: Path | None = None

    default_metrics: ClassVar[tuple[str, ...]] = ("map", "recall@1", "recall@5", "recall@10")

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        if self.root is not None:
            everything = query if gallery is None else gallery
            gallery = _load(self.root, "bounding_box_test").of(everything)
            query = _load(self.root, "query").of(query)
        if gallery is None:
            raise EvaluationError(
                "market1501: expected queries and a gallery, got no gallery; give both, or the "
                "data set's folder as root, which says which is which"
            )
        query, gallery = _by_person(query, "query"), _by_person(gallery, "gallery")
        excluded = np.isin(query.columns["labels"], (str(JUNK), str(DISTRACTOR)))
        if excluded.any():
            raise EvaluationError(
                f"query {str(query.ids[excluded][0])!r} is of person {JUNK} or {DISTRACTOR}, "
                "which are junk and distractors; are query and gallery exchanged?"
            )
        junk = gallery.columns["labels"] == str(JUNK)
        result = retrieval.evaluate(
            query,
            gallery[~junk] if junk.any() else gallery,
            metrics=metrics,
            junk_column="cameras",
            exclude_same_id=False,
            direct=direct,
        )
        return of_retrieval(result)


def _by_person(embeddings: Embeddings, what: str) -> Embeddings:
    """With the number of the person as label: '0002' is '2', junk is '-1'."""
    labels = retrieval.labels_of(embeddings, what)
    if embeddings.numbered:
        raise EvaluationError(
            f"the labels of the {what} are numbers that an earlier version of midspan gave, not "
            "the data set's own persons; pass root, the data set's folder, or embed them again"
        )
    try:
        return embeddings.with_columns({"labels": labels.astype(np.int64)})
    except ValueError:
        raise EvaluationError(
            f"market1501 expects persons as whole numbers, got the label {str(labels[0])!r}"
        ) from None


def _load(root: Path, folder: str) -> Items:
    path = Path(root) / folder
    if not path.is_dir():
        raise FormatError(f"{root}: has no folder {folder}; is it the data set's own folder?")
    rows = []
    for file in sorted(path.iterdir()):
        if file.suffix != ".jpg":
            continue  # Thumbs.db
        match = NAME.fullmatch(file.name)
        if match is None:
            raise FormatError(
                f"{file}: expected a name like 0002_c1s1_000451_03.jpg (person, camera, …)"
            )
        person, camera = int(match[1]), int(match[2])
        if person != JUNK:
            rows.append((f"{folder}/{file.name}", person, camera))
    return items(rows, columns=["labels", "cameras"], source=path)
