"""A softmax whose classes are spread over processes, and what they exchange.

Every process computes the same loss of the same vectors, each with its own classes. One process
alone exchanges nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def world() -> tuple[int, int]:
    """(rank, number of processes)."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def for_all(vectors: Tensor) -> Tensor:
    """The same vectors; their gradients are the sum of what the classes of all processes say."""
    if world()[1] == 1:
        return vectors
    same: Tensor = _ForAll.apply(vectors)  # type: ignore[no-untyped-call]
    return same


def cross_entropy(logits: Tensor, *, images: Tensor, places: Tensor) -> Tensor:
    """Mean over the batch of log Σ_j e^{l_ij} − l_iy, the sum over the classes of all processes.

    logits (B, S) are those of the own classes; `images` (K,) are the rows of the batch whose class
    is among them, and `places` (K,) its column.
    """
    value: Tensor = _CrossEntropy.apply(logits, images, places)  # type: ignore[no-untyped-call]
    return value


class _ForAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        return vectors.view_as(vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total


class _CrossEntropy(torch.autograd.Function):
    """One (B, S) buffer besides the logits: it becomes the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, images: Tensor, places: Tensor) -> Tensor:
        several = world()[1] > 1
        own = logits.new_zeros(len(logits))  # (B,) logit of the true class, in one process each
        own[images] = logits[images, places]
        # A process may have drawn no class at all.
        peak = logits.amax(1) if logits.shape[1] else logits.new_full((len(logits),), -torch.inf)
        if several:
            dist.all_reduce(peak, op=dist.ReduceOp.MAX)
        weights = (logits - peak.unsqueeze(1)).exp_()  # (B, S)
        sums = weights.sum(1)
        if several:
            dist.all_reduce(sums)
            dist.all_reduce(own)
        ctx.save_for_backward(weights, sums, images, places)
        return (sums.log() + peak - own).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        weights, sums, images, places = ctx.saved_tensors
        each = gradients[0] / len(sums)
        gradient = weights.mul_((each / sums).unsqueeze(1))  # p_ij / B, in the place of weights
        gradient[images, places] -= each
        return gradient, None, None
