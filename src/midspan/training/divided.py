"""Divide & Conquer in the loop: when to group the images, and which batches follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.encoders import Encoder
from midspan.spaces import FloatArray, IntArray
from midspan.training import learners
from midspan.training.distributed import Processes
from midspan.training.samplers import Sampler
from midspan.training.settings import TrainSettings
from midspan.training.step import Step

Load = Callable[[IntArray], Tensor]  # rows → network input (B, …)


def divided_epochs(settings: TrainSettings) -> int:
    """Epochs in which learners have clusters of their own; the rest is for the whole embedding."""
    if settings.learners == 1:
        return 0
    return settings.epochs - math.ceil(settings.conquer * settings.epochs)


def recluster(
    step: Step,
    *,
    load: Load,
    settings: TrainSettings,
    seed: int,
    again: bool,
    team: Processes,
) -> None:
    """Group the training images anew by their present vectors; learners keep their clusters.

    Every process embeds its share of the images, the first one groups them.
    """
    size = settings.batch_size
    own = embed_rows(step.encoder, load, count=len(step.clusters), batch_size=size, team=team)
    parts = team.to_first(own)

    def group() -> IntArray:
        found = learners.cluster(np.concatenate(parts), count=settings.learners, seed=seed)
        if again:
            before = step.clusters.cpu().numpy()
            found = learners.match(found, before, count=settings.learners)
        return found

    step.clusters.copy_(torch.from_numpy(team.once(group)))


@torch.inference_mode()
def embed_rows(
    encoder: Encoder, load: Load, *, count: int, batch_size: int, team: Processes
) -> FloatArray:
    """Unit vectors (n, D) of this process's share as they are now, without augmentation.

    The shares are whole batches, so that the vectors are those of one process to the last bit.
    """
    device = encoder.device
    encoder.eval()
    starts = np.arange(0, count, batch_size)
    parts = [np.empty((0, encoder.dim), dtype=np.float32)]
    for start in starts[team.share(len(starts))]:
        rows = np.arange(start, min(start + batch_size, count))
        parts.append(F.normalize(encoder(load(rows).to(device)).float()).cpu().numpy())
    encoder.train()
    return np.concatenate(parts)


def epoch_batches(
    step: Step,
    labels: IntArray,
    sampler: Sampler,
    *,
    divided: bool,
    steps: int,
    seed: int,
    epoch: int,
) -> list[tuple[int | None, IntArray]]:
    """(learner, rows) of each step of the epoch; no learner: the whole embedding learns."""
    if not divided:
        return [(None, rows) for rows in sampler.batches(labels, seed=seed, epoch=epoch)]
    return [
        *learners.batches(
            step.clusters.cpu().numpy(),
            labels,
            sampler=sampler,
            count=step.learners,
            steps=steps,
            seed=seed,
            epoch=epoch,
        )
    ]
