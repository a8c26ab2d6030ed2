"""Batch norm over the images of all processes, on any device.

torch.nn.SyncBatchNorm does the same on GPUs only. Here the modules keep their type and use
another forward during training, so that weights, names and checkpoints are those of one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from midspan.errors import ConfigError


@contextmanager
def synchronised(network: nn.Module, *, world: int) -> Iterator[None]:
    """Inside, every batch norm of the network sees the batch of all processes as one."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    if world == 1:
        norms = []
    for module in norms:
        if type(module).forward is not _BatchNorm.forward:
            raise ConfigError(
                f"this encoder has a custom batch norm, {type(module).__name__}, whose "
                f"statistics cannot be shared by {world} processes; train it with one process, or "
                "choose a backbone with torch's own batch norm or none"
            )
    for module in norms:
        module.forward = partial(_forward, module)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in norms:
            del module.forward


def _forward(module: _BatchNorm, x: Tensor) -> Tensor:
    if not module.training and module.running_mean is not None:
        return _BatchNorm.forward(module, x)
    normalised, mean, variance, count = _Normalise.apply(x, module.eps)  # type: ignore[no-untyped-call]
    if module.training and module.running_mean is not None:
        _remember(module, mean, variance * (count / (count - 1).clamp_min(1)))
    if not module.affine:
        result: Tensor = normalised
        return result
    shape = (1, -1, *(1,) * (x.ndim - 2))
    return torch.addcmul(module.bias.view(shape), normalised, module.weight.view(shape))


@torch.no_grad()
def _remember(module: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Running statistics as torch keeps them: the variance without bias."""
    assert module.running_mean is not None
    assert module.running_var is not None
    assert module.num_batches_tracked is not None
    module.num_batches_tracked.add_(1)
    share = module.momentum
    if share is None:
        share = 1.0 / float(module.num_batches_tracked)
    module.running_mean.lerp_(mean.to(module.running_mean.dtype), share)
    module.running_var.lerp_(variance.to(module.running_var.dtype), share)


class _Normalise(torch.autograd.Function):
    """(x − mean) / √(variance + eps), channel by channel, over the batch of all processes.

    Each process sends its mean, variance and count once forward, and two sums once backward.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        over = [0, *range(2, x.ndim)]
        channels = x.shape[1]
        wide = torch.promote_types(x.dtype, torch.float32)  # bf16 is too narrow for sums
        variance, mean = torch.var_mean(x.to(wide), dim=over, correction=0)
        own = torch.cat([mean, variance, mean.new_full((1,), x.numel() / channels)])
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)
        gathered = torch.stack(parts)  # (W, 2C + 1)
        means, variances, counts = (
            gathered[:, :channels],
            gathered[:, channels:-1],
            gathered[:, -1:],
        )
        weights = counts / counts.sum()  # (W, 1)
        mean = (weights * means).sum(0)
        variance = (weights * (variances + (means - mean).square())).sum(0)
        normalised = F.batch_norm(x, mean, variance, eps=eps)
        count = counts.sum()
        ctx.save_for_backward(normalised, (variance + eps).rsqrt(), count)
        ctx.mark_non_differentiable(mean, variance, count)
        return normalised, mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        normalised, scale, count = ctx.saved_tensors
        gradient = gradients[0]
        over = [0, *range(2, gradient.ndim)]
        wide = gradient.to(scale.dtype)
        sums = torch.stack([wide.sum(over), (wide * normalised).sum(over)])
        dist.all_reduce(sums)
        shape = (1, -1, *(1,) * (gradient.ndim - 2))
        plain, along = (sums / count).to(gradient.dtype)
        centred = gradient - plain.view(shape) - normalised * along.view(shape)
        return centred * scale.to(gradient.dtype).view(shape), None
