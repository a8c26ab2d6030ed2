"""One step of training as one module: images in, named terms of the loss out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from midspan.encoders import Encoder
from midspan.losses import RecognitionLoss
from midspan.losses.decorrelation import Decorrelation
from midspan.losses.gather import gather_rows
from midspan.methods import Batch, Method
from midspan.training.distributed import own_draws


@dataclass(frozen=True, slots=True)
class Shown:
    """What the network is shown in one step: B images, of which b ≤ B are in this process."""

    images: Tensor  # (b, …) network input
    labels: Tensor  # (B,)
    rows: Tensor  # (B,) rows of the training set
    old: Tensor | None  # (B, D_old)
    epoch: int
    progress: float
    learner: int | None = None  # the slice of the embedding that learns; None: the whole
    variations: Tensor | None = None  # (B, M) 0 or 1, what was done to each image
    shares: tuple[int, ...] | None = None  # the b of each process; None: there is one


class Step(nn.Module):
    """Encoder, losses and method: all that learns. A wrapper for many GPUs wraps this.

    Each process encodes its own images; losses and method see the vectors of all processes.
    """

    clusters: Tensor  # (N,) for Divide & Conquer, else (0,)

    def __init__(
        self,
        *,
        encoder: Encoder,
        loss: RecognitionLoss,
        method: Method,
        decorrelation: Decorrelation | None = None,
        recognition_weight: float = 1.0,
        learners: int = 1,
        images: int = 0,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.loss = loss
        self.method = method
        self.decorrelation = decorrelation
        self.recognition_weight = recognition_weight
        self.learners = learners
        # The cluster of each image, with the weights: a run that goes on needs both.
        self.register_buffer("clusters", torch.zeros(images if learners > 1 else 0).long())
        self.autocast = autocast  # of the encoder alone: losses on cosines want float32

    def forward(self, shown: Shown) -> dict[str, Tensor]:
        shares = shown.shares or (len(shown.images),)
        with self.autocast(), own_draws(shown.images.device):
            encoded = self.encoder.encode(shown.images)
        vectors = gather_rows(_wide(encoded.vectors), shares)  # (B, D)
        confidence = encoded.confidence
        if confidence is not None:
            confidence = gather_rows(_wide(confidence), shares)  # (B, K)
        seen = self.method.mix(vectors, old=shown.old, labels=shown.labels)
        logits = self.loss.confident_logits(seen, confidence)
        if shown.learner is None:
            recognition = self.loss(vectors=seen, logits=logits, labels=shown.labels)
        else:
            width = seen.shape[1] // self.learners
            dims = slice(shown.learner * width, (shown.learner + 1) * width)
            recognition = self.loss.part(seen, shown.labels, dims, confidence=confidence)
        terms = {"recognition": self.recognition_weight * recognition}
        bounds = self.loss.regulariser(confidence)
        if bounds is not None:
            terms["confidence"] = self.recognition_weight * bounds
        if self.decorrelation is not None and shown.variations is not None:
            terms |= self.decorrelation(vectors, shown.variations)
        terms |= self.method(
            Batch(
                vectors=vectors,
                logits=logits,
                labels=shown.labels,
                rows=shown.rows,
                old=shown.old,
                class_rows=self.loss.rows,
                epoch=shown.epoch,
                progress=shown.progress,
            )
        )
        return terms


def _wide(x: Tensor) -> Tensor:
    """At least float32, whatever the encoder computes in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
