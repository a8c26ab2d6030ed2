"""One step of training as one module: images in, named terms of the loss out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from midspan.encoders import Encoder
from midspan.losses import RecognitionLoss
from midspan.losses.decorrelation import Decorrelation
from midspan.losses.gather import gather_rows
from midspan.methods import Batch, Method, Mixed
from midspan.training.distributed import per_process_rng
from midspan.training.mixing import Mixing


@dataclass(frozen=True, slots=True)
class StepInput:
    """The input of one step: B images, of which b ≤ B are in this process."""

    images: Tensor  # (b, …) network input
    labels: Tensor  # (B,)
    rows: Tensor  # (B,) rows of the training set
    old: Tensor | None  # (B, D_old), cached or of this very view
    epoch: int
    progress: float
    learner: int | None = None  # the slice of the embedding that learns; None: the whole
    classes: Tensor | None = None  # (K,) the only ones that are compared; None: all
    variations: Tensor | None = None  # (B, M) 0 or 1, what was done to each image
    shares: tuple[int, ...] | None = None  # the b of each process; None: there is one
    mixing: Mixing | None = None  # the last images are mixtures; their labels count for nothing


class Step(nn.Module):
    """Encoder, losses and method: everything that learns, wrapped for several processes.

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
        # The cluster of each image, with the weights: a run that continues needs both.
        self.register_buffer("clusters", torch.zeros(images if learners > 1 else 0).long())
        self.autocast = autocast  # of the encoder alone: losses on cosines need float32

    def forward(self, inputs: StepInput) -> dict[str, Tensor]:
        shares = inputs.shares or (len(inputs.images),)
        with self.autocast(), per_process_rng(inputs.images.device):
            encoded = self.encoder.encode(inputs.images)
        vectors = gather_rows(_wide(encoded.vectors), shares)  # (B, D)
        confidence = encoded.confidence
        if confidence is not None:
            confidence = gather_rows(_wide(confidence), shares)  # (B, K)
        mixed = None
        if inputs.mixing is not None:
            mixed, vectors, confidence, inputs = _apart(vectors, confidence, inputs)
        seen = self.method.mix(vectors, old=inputs.old, labels=inputs.labels)
        logits = self.loss.confident_logits(seen, confidence)
        if inputs.learner is None and inputs.classes is None:
            recognition = self.loss(vectors=seen, logits=logits, labels=inputs.labels)
        else:
            dims = slice(0, seen.shape[1])
            if inputs.learner is not None:
                width = seen.shape[1] // self.learners
                dims = slice(inputs.learner * width, (inputs.learner + 1) * width)
            recognition = self.loss.part(
                seen, inputs.labels, dims, confidence=confidence, classes=inputs.classes
            )
        terms = {"recognition": self.recognition_weight * recognition}
        bounds = self.loss.regulariser(confidence)
        if bounds is not None:
            terms["confidence"] = self.recognition_weight * bounds
        if self.decorrelation is not None and inputs.variations is not None:
            terms |= self.decorrelation(vectors, inputs.variations)
        terms |= self.method.terms(
            Batch(
                vectors=vectors,
                logits=logits,
                labels=inputs.labels,
                rows=inputs.rows,
                old=inputs.old,
                class_rows=self.loss.rows,
                epoch=inputs.epoch,
                progress=inputs.progress,
                mixed=mixed,
            )
        )
        return terms


def _apart(
    vectors: Tensor, confidence: Tensor | None, inputs: StepInput
) -> tuple[Mixed | None, Tensor, Tensor | None, StepInput]:
    """The mixtures, and everything else without them."""
    mixing = inputs.mixing
    assert mixing is not None
    whole = len(vectors) - mixing.count
    mixed = None
    if inputs.old is not None:
        mixed = Mixed(
            vectors=vectors[whole:],
            old=inputs.old[whole:],
            rows=inputs.rows[whole:],
            others=inputs.rows[mixing.partners],
            share=mixing.share.to(vectors.device),
        )
    rest = replace(
        inputs,
        labels=inputs.labels[:whole],
        rows=inputs.rows[:whole],
        old=None if inputs.old is None else inputs.old[:whole],
        variations=None if inputs.variations is None else inputs.variations[:whole],
    )
    return mixed, vectors[:whole], None if confidence is None else confidence[:whole], rest


def _wide(x: Tensor) -> Tensor:
    """At least float32, whatever the encoder computes in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
