"""From the rows of a batch to what the network is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from midspan.errors import ConfigError
from midspan.spaces import IntArray
from midspan.training.augment import Augmentation
from midspan.training.distributed import Processes
from midspan.training.draws import Draws
from midspan.training.step import Shown
from midspan.training.variations import Variations


class Feed:
    """Images of this process's share of the batch, and all else of the whole batch.

    Images are what is dear to load; labels, old vectors and random numbers are cheap, so each
    process takes them for all. The sampler makes the same batches in every process.
    """

    def __init__(
        self,
        *,
        load: Callable[[IntArray], Tensor],  # rows → network input (b, …)
        labels: IntArray,  # (N,)
        old_vectors: Tensor | None,  # (N, D_old)
        augmentations: Sequence[Augmentation],
        variations: Variations | None,
        team: Processes,
        device: torch.device,
    ) -> None:
        self._load = load
        self._labels = torch.from_numpy(labels)
        self._old_vectors = old_vectors
        self._augmentations = augmentations
        self._variations = variations
        self._team = team
        self._device = device

    def __call__(
        self, rows: IntArray, *, learner: int | None, epoch: int, progress: float
    ) -> Shown:
        total, team = len(rows), self._team
        if total < team.world:
            raise ConfigError(
                f"a batch of {total} images cannot be shared by {team.world} processes; raise "
                "[train] batch_size or start fewer processes"
            )
        own = team.share(total)
        draws = Draws(torch.default_generator, total, own.start, own.stop)
        images = self._load(rows[own]).to(self._device, non_blocking=True)
        for augmentation in self._augmentations:
            images = augmentation(images, draws)
        varied = None
        if self._variations is not None:
            images, varied = self._variations(images, rows, draws)
        index = torch.from_numpy(rows)
        old = None if self._old_vectors is None else self._old_vectors[index].to(self._device)
        return Shown(
            images=images,
            labels=self._labels[index].to(self._device, non_blocking=True),
            rows=index,
            old=old,
            epoch=epoch,
            progress=progress,
            learner=learner,
            variations=varied,
            shares=team.shares(total),
        )
