"""Stanford Online Products: leave-one-out over the test half, 60,502 images of 11,316 products.

    Ebay_train.txt, Ebay_test.txt    'image_id class_id super_class_id path', with a header line

Ids are the paths. Without `root` the embeddings are taken for the test half, by their labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from midspan.errors import FormatError
from midspan.evaluation.protocols.leave_one_out import LeaveOneOut
from midspan.evaluation.protocols.listing import Items, fields, find, image_id, items, lines, whole
from midspan.evaluation.protocols.outcome import Outcome
from midspan.spaces import Embeddings

HEADER = "image_id class_id super_class_id path"


@dataclass(frozen=True, slots=True)
class Products:
    """Columns: labels (the product) and groups (one of the 12 kinds of product)."""

    train: Items
    test: Items


def load(root: Path) -> Products:
    return Products(train=_load(root, "Ebay_train.txt"), test=_load(root, "Ebay_test.txt"))


@dataclass(frozen=True, kw_only=True)
class SOP:
    """Recall at 1, 10, 100 and 1000, as published."""

    root: Path | None = None

    default_metrics: ClassVar[tuple[str, ...]] = (
        "recall@1",
        "recall@10",
        "recall@100",
        "recall@1000",
    )

    def evaluate(
        self,
        query: Embeddings,
        gallery: Embeddings | None = None,
        *,
        metrics: Sequence[str] = default_metrics,
        direct: bool = False,
    ) -> Outcome:
        if self.root is not None:
            test = _load(self.root, "Ebay_test.txt")
            query = test.of(query)
            gallery = None if gallery is None else test.of(gallery)
        return LeaveOneOut().evaluate(query, gallery, metrics=metrics, direct=direct)


def _load(root: Path, name: str) -> Items:
    path = find(Path(root), name, f"Info_Files/{name}")
    _, header = next(lines(path), (1, ""))
    if header.split() != HEADER.split():
        raise FormatError(f"{path}:1: expected the header '{HEADER}', got {header[:80]!r}")
    rows = [
        (image_id(image, where=where), whole(label, where=where), whole(group, where=where))
        for where, (_, label, group, image) in fields(path, expected=HEADER, skip=1)
    ]
    return items(rows, columns=["labels", "groups"], source=path)
