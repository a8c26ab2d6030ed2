"""Which rows make a batch: a function of (seed, epoch), so that a run can resume anywhere."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from midspan.errors import ConfigError
from midspan.spaces import IntArray


class Sampler(Protocol):
    def batches(self, labels: IntArray, *, seed: int, epoch: int) -> list[IntArray]:
        """The rows of each batch of this epoch."""


class Shuffled:
    """Every row once an epoch, in random order; a last batch under half the size is left out.

    Batch norm on a handful of images would do more harm than good.
    """

    def __init__(self, *, batch_size: int = 256) -> None:
        self.batch_size = _positive("batch_size", batch_size)

    def batches(self, labels: IntArray, *, seed: int, epoch: int) -> list[IntArray]:
        order = np.random.default_rng((seed, epoch)).permutation(len(labels))
        full = [order[at : at + self.batch_size] for at in range(0, len(order), self.batch_size)]
        if len(full) > 1 and len(full[-1]) < self.batch_size / 2:
            full.pop()
        return full


class Balanced:
    """P classes × K images a batch, for losses on pairs; classes with fewer images repeat some.

    Defaults: 16 × 4 = 64, the batch of LCE's released code (4 images an identity).
    """

    def __init__(self, *, classes_per_batch: int = 16, images_per_class: int = 4) -> None:
        self.classes = _positive("classes_per_batch", classes_per_batch)
        self.images = _positive("images_per_class", images_per_class)

    def batches(self, labels: IntArray, *, seed: int, epoch: int) -> list[IntArray]:
        rng = np.random.default_rng((seed, epoch))
        present, counts = np.unique(labels, return_counts=True)
        if len(present) < self.classes:
            raise ConfigError(
                f"expected classes_per_batch of at most {len(present)}, the classes with images, "
                f"got {self.classes}"
            )
        order = np.argsort(labels, kind="stable")
        groups = np.split(order, np.cumsum(counts)[:-1])
        steps = max(1, len(labels) // (self.classes * self.images))
        batches = []
        queue = np.empty(0, dtype=np.int64)  # classes take turns, so that none is left out
        for _ in range(steps):
            while len(queue) < self.classes:
                shuffled_classes = rng.permutation(len(groups))
                queue = np.concatenate([queue, shuffled_classes[~np.isin(shuffled_classes, queue)]])
            chosen, queue = queue[: self.classes], queue[self.classes :]
            batches.append(np.concatenate([self._draw(rng, groups[c]) for c in chosen]))
        return batches

    def _draw(self, rng: np.random.Generator, group: IntArray) -> IntArray:
        return rng.choice(group, self.images, replace=len(group) < self.images)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ConfigError(f"expected {name} of at least 1, got {value}")
    return value
