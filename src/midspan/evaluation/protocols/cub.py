"""CUB-200-2011: leave-one-out over the last 100 of 200 classes of birds.

    images.txt                'number path', the path below images/
    image_class_labels.txt    'number class'

Ids are the paths of images.txt. Without `root` the embeddings are taken for the test half, by
their labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from midspan.errors import FormatError
from midspan.evaluation.protocols.leave_one_out import LeaveOneOut
from midspan.evaluation.protocols.listing import Items, fields, find, image_id, items, whole
from midspan.evaluation.protocols.outcome import Outcome
from midspan.spaces import Embeddings

LAST_TRAIN_CLASS = 100  # zero-shot retrieval: the halves share no class


@dataclass(frozen=True, slots=True)
class Birds:
    """Column: labels (the class, from 1)."""

    train: Items
    test: Items


def load(root: Path) -> Birds:
    names = find(Path(root), "images.txt")
    classes = find(Path(root), "image_class_labels.txt")
    label_of = {
        whole(number, where=where): whole(label, where=where)
        for where, (number, label) in fields(classes, expected="number class")
    }
    train: list[tuple[str, int]] = []
    test: list[tuple[str, int]] = []
    for where, (number, image) in fields(names, expected="number path"):
        key = whole(number, where=where)
        if key not in label_of:
            raise FormatError(f"{where}: image {key} has no class in {classes.name}")
        row = (image_id(image, where=where), label_of[key])
        (train if label_of[key] <= LAST_TRAIN_CLASS else test).append(row)
    return Birds(
        train=items(train, columns=["labels"], source=names),
        test=items(test, columns=["labels"], source=names),
    )


@dataclass(frozen=True, kw_only=True)
class CUB:
    """Recall at 1, 2, 4 and 8, as published."""

    root: Path | None = None

    default_metrics: ClassVar[tuple[str, ...]] = ("recall@1", "recall@2", "recall@4", "recall@8")

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        if self.root is not None:
            test = load(self.root).test
            query = test.of(query)
            gallery = None if gallery is None else test.of(gallery)
        return LeaveOneOut().evaluate(query, gallery, metrics=metrics, direct=direct)
