"""Time of a training step with learners or with URL, against a plain step of the same encoder."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from midspan.config import build
from midspan.data import ImageSet
from midspan.data.sources import ArraySource
from midspan.encoders import build_encoder
from midspan.losses import LOSSES
from midspan.methods.independent import Independent
from midspan.training import RunConfig
from midspan.training.augment import chain
from midspan.training.batch_loader import BatchRandom
from midspan.training.loop import make_optimiser
from midspan.training.step import Step, StepInput
from midspan.training.variations import Variations, make_variations

CLASSES, BATCH, SIZE = 300, 128, 32


class Arm:
    """Encoder, loss and optimiser of a run file, step by step as the loop does it."""

    def __init__(self, config: RunConfig) -> None:
        torch.manual_seed(0)
        wanted = config.encoder
        encoder = build_encoder(
            backbone="small-resnet",
            dim=wanted.dim,
            size=SIZE,
            channels=1,
            seed=0,
            sub_embeddings=config.sub_embeddings,
            confident=wanted.confident,
        )
        loss = build(LOSSES, config.loss, what="loss")
        loss.prepare(num_classes=CLASSES, dim=wanted.dim)
        self.variations: Variations | None = None
        if config.variations is not None:
            self.variations = make_variations(
                config.variations,
                images=_blank(),
                dim=wanted.dim,
                sub_embeddings=config.sub_embeddings,
                seed=0,
            )
        self.step = Step(
            encoder=encoder,
            loss=loss,
            method=Independent(),
            decorrelation=self.variations.decorrelation if self.variations else None,
            learners=config.train.learners,
        ).train()
        self.optimiser = make_optimiser(self.step, config.train)
        self.augmentations = chain(config.train.augment)

    def seconds(self, images: torch.Tensor, labels: torch.Tensor, *, learner: int) -> float:
        """CPU time of one step, augmentation included."""
        started = time.process_time()
        rng = BatchRandom.whole(len(images), torch.default_generator)
        for augmentation in self.augmentations:
            images = augmentation(images, rng)
        varied = None
        if self.variations is not None:
            images, varied = self.variations(images, np.arange(len(images)), rng)
        terms = self.step(
            StepInput(
                images=images,
                labels=labels,
                rows=torch.arange(len(images)),
                old=None,
                epoch=0,
                progress=0.5,
                learner=learner % self.step.learners if self.step.learners > 1 else None,
                variations=varied,
            )
        )
        self.optimiser.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.step.parameters(), 5.0)
        self.optimiser.step()
        return time.process_time() - started


def step_ratios(
    changes: Any, run_file: Callable[..., RunConfig], *, turns: int
) -> dict[str, float]:
    """Median over the turns of this arm's step by the plain one's of the same turn."""
    data = {"name": "digits"}  # named only: the images here are random
    arms = [
        Arm(run_file(data, {}, seed=0, epochs=8)),
        Arm(run_file(data, changes, seed=0, epochs=8)),
    ]
    generator = torch.Generator().manual_seed(0)
    order = random.Random(0)
    ratios, plain = [], []
    for turn in range(-3, turns):  # three to warm up
        images = torch.rand(BATCH, 1, SIZE, SIZE, generator=generator)
        labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
        taken = {}
        for number in order.sample((0, 1), 2):
            taken[number] = arms[number].seconds(images, labels, learner=turn % 8)
        if turn >= 0:
            ratios.append(taken[1] / taken[0])
            plain.append(taken[0])
    return {"step ratio": statistics.median(ratios), "plain ms": 1e3 * statistics.median(plain)}


def _blank() -> ImageSet:
    pixels = np.zeros((2, SIZE, SIZE, 1), dtype=np.uint8)
    return ImageSet(ids=np.array(["a", "b"]), source=ArraySource.of(pixels, name="blank"))
