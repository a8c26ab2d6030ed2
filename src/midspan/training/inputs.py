"""From the [data] and [allocation] of a run file to the rows that this encoder may learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from midspan.config import build
from midspan.data import DATASETS, ImageSet, allocate, check_trainable, hold_out_classes
from midspan.encoders import Encoder
from midspan.errors import DataError
from midspan.spaces import Embeddings, IntArray
from midspan.training.settings import RunConfig

# "vectors": features that another encoder has computed, for a head that trains in seconds
SOURCES = {**DATASETS, "vectors": "midspan.training.inputs:vectors"}

Items = ImageSet | Embeddings


@dataclass(frozen=True)
class Inputs:
    """Training items with labels 0 … C-1, and test items of other classes."""

    train: Items
    labels: IntArray  # (N,)
    class_names: tuple[str, ...]
    test: Items | None


def read_inputs(config: RunConfig) -> Inputs:
    items = build(SOURCES, config.data, what="data")
    labels, names, split = _labelled(items)
    train_rows = np.flatnonzero(split == 0)
    test_rows = np.flatnonzero(split == 1)
    if config.evaluate.validation:
        kept, held = hold_out_classes(
            labels[train_rows], fraction=config.evaluate.validation_fraction
        )
        train_rows, test_rows = train_rows[kept], train_rows[held]
    if config.allocation is not None:
        wanted = config.allocation
        allocation = allocate(
            labels[train_rows],
            kind=wanted.kind,
            old_fraction=wanted.old_fraction,
            seed=wanted.seed,
        )
        train_rows = train_rows[allocation.old if wanted.part == "old" else allocation.new]
    _check_trainable(items[train_rows], labels[train_rows])
    present, dense = np.unique(labels[train_rows], return_inverse=True)
    return Inputs(
        train=items[train_rows],
        labels=dense.astype(np.int64),
        class_names=tuple(names[label] for label in present),
        test=items[test_rows] if len(test_rows) else None,
    )


def vectors(path: str) -> Embeddings:
    """[data] name = "vectors": an embeddings file with the column labels, and perhaps split."""
    return Embeddings.load(path)


def loader(encoder: Encoder, items: Items) -> Callable[[IntArray], Tensor]:
    """rows → what the encoder takes. Images are decoded once and kept as bytes."""
    if isinstance(items, Embeddings):
        features = torch.from_numpy(items.vectors)
        return lambda rows: features[torch.from_numpy(rows)]
    shape = encoder.preprocessing
    return lambda rows: shape.tensor(
        items.load(
            rows,
            height=shape.height,
            width=shape.width,
            channels=shape.channels,
            fit=shape.fit,
        )
    )


def _check_trainable(items: Items, labels: IntArray) -> None:
    if isinstance(items, ImageSet):
        check_trainable(items)
    elif len(np.unique(labels)) < 2:
        raise DataError(f"{len(items)} vectors of fewer than two classes; training wants two")


def _labelled(items: Items) -> tuple[IntArray, tuple[str, ...], IntArray]:
    """(labels, class names, split) of either kind of items; no split means all are for training."""
    if isinstance(items, Embeddings):
        if items.labels is None:
            raise DataError("these embeddings have no labels; training wants a column 'labels'")
        names, labels = np.unique(items.labels, return_inverse=True)
        split = items.columns.get("split", np.zeros(len(items)))
        return labels.astype(np.int64), tuple(map(str, names)), split.astype(np.int64)
    if items.labels is None:
        raise DataError(
            "these images have no labels; training wants a folder per class, or a label column"
        )
    split = np.zeros(len(items)) if items.split is None else items.split
    return items.labels, items.class_names, split.astype(np.int64)
