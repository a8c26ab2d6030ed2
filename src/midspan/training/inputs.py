"""From the [data] and [allocation] of a run file to the rows that this encoder may learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from midspan.config import build
from midspan.data import DATASETS, ImageSet, allocate, check_trainable, hold_out_classes
from midspan.encoders import Encoder
from midspan.errors import DataError
from midspan.labels import ClassNames
from midspan.spaces import Embeddings, IntArray
from midspan.training.settings import RunConfig

# "vectors": features that another encoder has computed, for a head that trains in seconds
SOURCES = {**DATASETS, "vectors": "midspan.training.inputs:vectors"}

Items = ImageSet | Embeddings


@dataclass(frozen=True)
class Inputs:
    """Training items, and test items of other classes.

    From here on classes are numbers: the index of their name in `class_names`.
    """

    train: Items
    labels: IntArray  # (N,) 0 … C-1
    class_names: tuple[str, ...]
    test: Items | None
    whole: Items | None = None  # all that [data] holds, of which these are parts

    def without(self, ids: set[str]) -> Inputs:
        """The same without these items."""
        if not ids:
            return self
        kept = np.array([name not in ids for name in self.train.ids.tolist()], dtype=bool)
        test = self.test
        if test is not None:
            test = test[np.array([name not in ids for name in test.ids.tolist()], dtype=bool)]
        return replace(self, train=self.train[kept], labels=self.labels[kept], test=test)


def read_inputs(config: RunConfig) -> Inputs:
    items = build(SOURCES, config.data, what="data")
    classes, split = _classes_and_split(items)
    assert items.labels is not None
    labels = classes.encode(items.labels)
    train_rows = np.flatnonzero(split == 0)
    test_rows = np.flatnonzero(split == 1)
    if config.evaluate.validation:
        kept, held = hold_out_classes(
            labels[train_rows], fraction=config.evaluate.validation_fraction
        )
        train_rows, test_rows = train_rows[kept], train_rows[held]
    if config.allocation is not None:
        chosen = config.allocation
        allocation = allocate(
            labels[train_rows],
            kind=chosen.kind,
            old_fraction=chosen.old_fraction,
            seed=chosen.seed,
        )
        train_rows = train_rows[allocation.old if chosen.part == "old" else allocation.new]
    _check_trainable(items[train_rows], labels[train_rows])
    present, dense = np.unique(labels[train_rows], return_inverse=True)
    return Inputs(
        train=items[train_rows],
        labels=dense.astype(np.int64),
        class_names=tuple(classes.names[number] for number in present),
        test=items[test_rows] if len(test_rows) else None,
        whole=items,
    )


def vectors(path: str, *, space: str | None = None) -> Embeddings:
    """[data] name = "vectors": an embeddings file with the column labels, and perhaps split.

    `space` is the name of its space, for a file that does not hold it.
    """
    return Embeddings.load(path, space=space)


def loader(encoder: Encoder, items: Items) -> Callable[[IntArray], Tensor]:
    """rows → what the encoder takes. Images are decoded once and kept as bytes."""
    if isinstance(items, Embeddings):
        features = torch.from_numpy(items.vectors)
        return lambda rows: features[torch.from_numpy(rows)]
    shape = encoder.preprocessing
    return lambda rows: shape.tensor(items.load(rows, shape.image_size))


def _check_trainable(items: Items, labels: IntArray) -> None:
    if isinstance(items, ImageSet):
        check_trainable(items)
    elif len(np.unique(labels)) < 2:
        raise DataError(
            f"training: expected two or more classes, got fewer in {len(items)} vectors"
        )


_NO_LABELS: dict[type, str] = {
    Embeddings: "training: expected a column 'labels', got embeddings without labels",
    ImageSet: "training: expected a folder per class or a label column, got images without labels",
}


def _classes_and_split(items: Items) -> tuple[ClassNames, IntArray]:
    """The order of all classes, and the split; no split means all are for training."""
    if items.labels is None:
        raise DataError(_NO_LABELS[type(items)])
    if isinstance(items, Embeddings):
        classes, split = ClassNames.of(items.labels), items.columns.get("split")
    else:
        classes, split = ClassNames(items.class_names), items.split
    return classes, (np.zeros(len(items)) if split is None else split).astype(np.int64)
