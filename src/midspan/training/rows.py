"""Updates of single class rows: of those that a step has drawn, each with a state of its own.

A row that is not drawn stays as it is, and so do its momentum and moments: no decay, no step. Every
row goes the way that torch's SGD or AdamW would take it if it were a parameter of its own whose
gradient is None in the steps that leave it out.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch import distributed as dist

from midspan.losses import RecognitionLoss
from midspan.losses.partial_fc import PartialFC
from midspan.losses.sharded import world
from midspan.training.settings import TrainSettings

BETAS, EPSILON = (0.9, 0.999), 1e-8  # torch's AdamW


class RowOptimiser:
    """SGD with momentum or AdamW, as [train] says, for the class rows of this process."""

    def __init__(self, loss: PartialFC, settings: TrainSettings) -> None:
        self.loss = loss
        self.settings = settings
        adamw = settings.optimiser == "adamw"
        moments = ("first", "second") if adamw else ("momentum",)
        # everything that a checkpoint holds: the values themselves, and the state of each row
        self.tensors: dict[str, Tensor] = {"rows": loss.held.rows}
        if loss.held.bias is not None:
            self.tensors["bias"] = loss.held.bias
        if loss.fixed:  # by a method: nothing is learnt
            return
        for name in tuple(self.tensors):
            for moment in moments:
                self.tensors[f"{name}.{moment}"] = torch.zeros_like(self.tensors[name])
        if adamw:  # how often each row was drawn
            self.tensors["steps"] = torch.zeros_like(loss.held.rows[:, 0])

    @torch.no_grad()
    def step(self, *, rate: float) -> None:
        """Once after each backward; `rate` is the encoder's learning rate."""
        drawn = self.loss.drawn
        self.loss.drawn = None  # its gradients are used once
        if drawn is None or self.loss.fixed:
            return
        update = self._sgd if self.settings.optimiser == "sgd" else self._adamw
        if self.settings.optimiser == "adamw":
            self._put("steps", drawn.index, self._take("steps", drawn.index).add_(1))
        for name, leaf in (("rows", drawn.rows), ("bias", drawn.bias)):
            if leaf is not None and leaf.grad is not None:
                update(name, drawn.index, leaf.grad, rate * self.loss.proxy_lr)

    def _sgd(self, name: str, index: Tensor | None, gradient: Tensor, rate: float) -> None:
        values, momentum = self._take(name, index), self._take(f"{name}.momentum", index)
        momentum.mul_(self.settings.momentum).add_(gradient)
        momentum.add_(values, alpha=self._decay(values))
        self._put(f"{name}.momentum", index, momentum)
        self._put(name, index, values.add_(momentum, alpha=-rate))

    def _adamw(self, name: str, index: Tensor | None, gradient: Tensor, rate: float) -> None:
        values, steps = self._take(name, index), self._take("steps", index)
        if values.ndim > 1:
            steps = steps.unsqueeze(1)
        first = self._take(f"{name}.first", index).lerp_(gradient, 1.0 - BETAS[0])
        second = self._take(f"{name}.second", index).mul_(BETAS[1])
        second.addcmul_(gradient, gradient, value=1.0 - BETAS[1])
        self._put(f"{name}.first", index, first)
        self._put(f"{name}.second", index, second)
        size = (second / (1.0 - BETAS[1] ** steps)).sqrt_().add_(EPSILON)
        size.mul_(1.0 - BETAS[0] ** steps)
        values.mul_(1.0 - rate * self._decay(values)).addcdiv_(first, size, value=-rate)
        self._put(name, index, values)

    def _decay(self, values: Tensor) -> float:
        return self.settings.weight_decay if values.ndim > 1 else 0.0

    def _take(self, name: str, index: Tensor | None) -> Tensor:
        """To be changed in place: the tensor itself, or a copy that `_put` brings back."""
        return self.tensors[name] if index is None else self.tensors[name][index]

    def _put(self, name: str, index: Tensor | None, values: Tensor) -> None:
        if index is not None:
            self.tensors[name].index_copy_(0, index, values)


def row_optimiser(loss: RecognitionLoss, settings: TrainSettings) -> RowOptimiser | None:
    """None for a classifier whose rows are parameters like all others."""
    if isinstance(loss, PartialFC):
        return RowOptimiser(loss, settings)
    return None


def clip(parameters: Iterable[Tensor], rows: RowOptimiser | None, *, limit: float) -> None:
    """As torch's clip_grad_norm_, with the class rows of all processes in the norm."""
    if rows is None or rows.loss.drawn is None:
        nn.utils.clip_grad_norm_(parameters, limit)
        return
    drawn = rows.loss.drawn
    leaves = [leaf.grad for leaf in (drawn.rows, drawn.bias) if leaf is not None]
    own = [gradient for gradient in leaves if gradient is not None]
    shared = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = torch.zeros((), device=drawn.rows.device)
    for gradient in own:
        squares += gradient.square().sum()
    if world()[1] > 1:
        dist.all_reduce(squares)
    for gradient in shared:  # the same in all processes
        squares += gradient.square().sum()
    factor = (limit / (squares.sqrt() + 1e-6)).clamp_max(1.0)  # torch's own way
    for gradient in (*own, *shared):
        gradient.mul_(factor)
