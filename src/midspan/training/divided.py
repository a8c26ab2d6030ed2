"""Divide & Conquer in the loop: when to cluster the images, and the batches that follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.encoders import Encoder
from midspan.spaces import FloatArray, IntArray
from midspan.training import learners
from midspan.training.distributed import Processes
from midspan.training.freeze import train_mode
from midspan.training.samplers import Sampler
from midspan.training.settings import TrainSettings
from midspan.training.step import Step


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: its rows, whose slice learns (None: all dims), among which classes (None: all)."""

    rows: IntArray
    learner: int | None = None
    classes: IntArray | None = None


Load = Callable[[IntArray], Tensor]  # rows → network input (B, …)


@dataclass(frozen=True, slots=True)
class Phases:
    """Epochs of Divide & Conquer: [first, last) have batches of one cluster each.

    Before that the whole embedding learns (clusters of an untrained network carry little); from
    `joint` on a batch teaches all dims instead of its learner's slice, as the released schedule
    does (200 epochs: slices to 80, all dims on one cluster's images to 190, then everything).
    """

    first: int
    joint: int
    last: int

    @classmethod
    def of(cls, settings: TrainSettings) -> Phases:
        if settings.learners == 1:
            return cls(0, 0, 0)
        last = settings.epochs - math.ceil(settings.conquer * settings.epochs)
        first = min(last, math.ceil(settings.warm_up_learners * settings.epochs))
        return cls(first, max(first, math.floor(settings.all_dims_from * settings.epochs)), last)

    def divided(self, epoch: int) -> bool:
        return self.first <= epoch < self.last

    def regroups(self, epoch: int, every: int) -> bool:
        return self.divided(epoch) and (epoch - self.first) % every == 0


def recluster(
    step: Step,
    *,
    load: Load,
    settings: TrainSettings,
    seed: int,
    again: bool,
    processes: Processes,
) -> None:
    """Cluster the training images again by their current vectors; learners keep their clusters.

    Every process embeds its share of the images, the first one clusters them.
    """
    size = settings.batch_size
    own = embed_rows(
        step.encoder, load, count=len(step.clusters), batch_size=size, processes=processes
    )
    parts = processes.gather_to_first(own)

    def group() -> IntArray:
        clusters = learners.cluster(np.concatenate(parts), count=settings.learners, seed=seed)
        if again:
            before = step.clusters.cpu().numpy()
            clusters = learners.match(clusters, before, count=settings.learners)
        return clusters

    step.clusters.copy_(torch.from_numpy(processes.once(group)))


@torch.inference_mode()
def embed_rows(
    encoder: Encoder, load: Load, *, count: int, batch_size: int, processes: Processes
) -> FloatArray:
    """Unit vectors (n, D) of this process's share as they are now, without augmentation.

    The shares are whole batches, so that the vectors are those of one process bit for bit.
    """
    device = encoder.device
    encoder.eval()
    starts = np.arange(0, count, batch_size)
    parts = [np.empty((0, encoder.dim), dtype=np.float32)]
    for start in starts[processes.share(len(starts))]:
        rows = np.arange(start, min(start + batch_size, count))
        parts.append(F.normalize(encoder(load(rows).to(device)).float()).cpu().numpy())
    train_mode(encoder)
    return np.concatenate(parts)


def epoch_batches(
    step: Step,
    labels: IntArray,
    sampler: Sampler,
    *,
    phases: Phases,
    own_classes: bool,
    steps: int,
    seed: int,
    epoch: int,
) -> list[StepPlan]:
    """The rows, learner and classes of each step of the epoch."""
    if not phases.divided(epoch):
        return [StepPlan(rows) for rows in sampler.batches(labels, seed=seed, epoch=epoch)]
    clusters = step.clusters.cpu().numpy()
    drawn = learners.batches(
        clusters,
        labels,
        sampler=sampler,
        count=step.learners,
        steps=steps,
        seed=seed,
        epoch=epoch,
    )
    present = {
        learner: np.unique(
            np.concatenate([labels[clusters == learner], *_labels(drawn, learner, labels)])
        )
        for learner in {learner for learner, _ in drawn}
    }
    return [
        StepPlan(
            rows,
            learner=None if epoch >= phases.joint else learner,
            classes=present[learner] if own_classes else None,
        )
        for learner, rows in drawn
    ]


def _labels(drawn: list[tuple[int, IntArray]], learner: int, labels: IntArray) -> list[IntArray]:
    """Also of images from elsewhere: a cluster too small to learn from draws from all."""
    return [labels[rows] for whose, rows in drawn if whose == learner]
