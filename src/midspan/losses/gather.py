"""Vectors of all processes as one batch, with gradients.

Where several processes train together, each encodes its share of the images; from there on every
process has the vectors of the whole batch and computes the same loss of it. So a loss or a method
need not know that there are others: it mines, counts and normalises over the whole batch.

It is here because losses may not import training; training, methods and losses may all use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def gather_rows(own: Tensor, sizes: Sequence[int]) -> Tensor:
    """(b, …) of each process → (B, …) of all, in the order of ranks; sizes: the b of each rank.

    The gradient of the own rows comes back times the number of processes, because the gradients of
    the weights are averaged over them, and each has those of its own images only.
    """
    if len(sizes) == 1:
        return own
    whole: Tensor = _Gather.apply(own, tuple(sizes))  # type: ignore[no-untyped-call]
    return whole


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, sizes: tuple[int, ...]) -> Tensor:
        ctx.sizes = sizes
        most = max(sizes)  # all_gather needs equal sizes
        sent = own.new_zeros(most, *own.shape[1:])
        sent[: len(own)] = own
        parts = [torch.empty_like(sent) for _ in sizes]
        dist.all_gather(parts, sent)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rank = dist.get_rank()
        start = sum(ctx.sizes[:rank])
        own = gradients[0][start : start + ctx.sizes[rank]]
        return own * len(ctx.sizes), None
