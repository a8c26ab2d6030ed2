"""Batches: the rows of a step become network input, and random numbers for each of its images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from midspan.errors import ConfigError
from midspan.losses.gather import gather_rows
from midspan.spaces import IntArray
from midspan.training.distributed import Processes
from midspan.training.mixing import Mixing
from midspan.training.step import StepInput

if TYPE_CHECKING:  # these modules draw from BatchRandom
    from midspan.training.augment import Augmentation
    from midspan.training.variations import Variations
    from midspan.training.views import OldView


@dataclass(frozen=True, slots=True)
class BatchRandom:
    """Random numbers for the whole batch, of which each process uses its share.

    So an image gets the same numbers whichever process loads it, and all processes leave the
    generator in the same state.
    """

    generator: Generator  # on the CPU, so that a seed means the same on every device
    total: int  # images of the whole batch
    start: int  # of which start ≤ i < stop are here
    stop: int

    @classmethod
    def whole(cls, total: int, generator: Generator) -> BatchRandom:
        return cls(generator, total, 0, total)

    def rand(self, *shape: int) -> Tensor:
        """(own images, *shape), uniform in [0, 1)."""
        every = torch.rand(self.total, *shape, generator=self.generator)
        return every[self.start : self.stop]

    def uniform(self, low: float, high: float) -> Tensor:
        """(own images,)"""
        return self.rand() * (high - low) + low

    def subset(self, chosen: Tensor) -> BatchRandom:
        """For the `chosen` images only, (total,) true or false."""
        return BatchRandom(
            self.generator,
            int(chosen.sum()),
            int(chosen[: self.start].sum()),
            int(chosen[: self.stop].sum()),
        )


class BatchLoader:
    """Images of this process's share of the batch, and all else of the whole batch.

    Images are expensive to load; labels, old vectors and random numbers are cheap, so each
    process takes them for all. The sampler gives the same batches in every process.
    """

    def __init__(
        self,
        *,
        load: Callable[[IntArray], Tensor],  # rows → network input (b, …)
        labels: IntArray,  # (N,)
        old_vectors: Tensor | None,  # (N, D_old)
        old_view: OldView | None = None,  # in place of old_vectors
        mixup: float = 0.0,  # part of each batch
        augmentations: Sequence[Augmentation],
        variations: Variations | None,
        processes: Processes,
        device: torch.device,
    ) -> None:
        self._load = load
        self._labels = torch.from_numpy(labels)
        self._old_vectors = old_vectors
        self._old_view = old_view
        self._mixup = mixup
        self._augmentations = augmentations
        self._variations = variations
        self._processes = processes
        self._device = device

    def __call__(
        self,
        rows: IntArray,
        *,
        learner: int | None,
        classes: IntArray | None = None,
        epoch: int,
        progress: float,
    ) -> StepInput:
        total, processes = len(rows), self._processes
        if total < processes.world:
            raise ConfigError(
                f"a batch of {total} images cannot be shared by {processes.world} processes; raise "
                "[train] batch_size or start fewer processes"
            )
        own = processes.share(total)
        rng = BatchRandom(torch.default_generator, total, own.start, own.stop)
        images = self._load(rows[own]).to(self._device, non_blocking=True)
        for augmentation in self._augmentations:
            images = augmentation(images, rng)
        varied = None
        if self._variations is not None:
            images, varied = self._variations(images, rows, rng)
        mixing = None
        if self._mixup:
            mixing = Mixing.draw(total, self._mixup, torch.default_generator)
        if mixing is not None:
            images = mixing(images)
        index = torch.from_numpy(rows)
        return StepInput(
            images=images,
            labels=self._labels[index].to(self._device, non_blocking=True),
            rows=index,
            old=self._old(images, rows, mixing, own),
            epoch=epoch,
            progress=progress,
            learner=learner,
            classes=None if classes is None else torch.from_numpy(classes).to(self._device),
            variations=varied,
            shares=processes.shares(total),
            mixing=mixing,
        )

    def _old(
        self, images: Tensor, rows: IntArray, mixing: Mixing | None, own: slice
    ) -> Tensor | None:
        """(B, D_old) of the whole batch."""
        if self._old_view is not None:
            vectors = self._old_view(images, rows[own], mixing)
            return gather_rows(vectors, self._processes.shares(len(rows)))
        if self._old_vectors is None:
            return None
        return self._old_vectors[torch.from_numpy(rows)].to(self._device)
