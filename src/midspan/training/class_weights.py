"""Class weights in parts: each process updates and saves those of its own classes.

A sharded classifier (Partial FC) updates only the classes that a step has drawn. A class that is
not drawn keeps its weights, momentum and moments: no decay, no step. Each class is updated as
torch's SGD or AdamW would if it were a separate parameter whose gradient is None in the steps
that leave it out.

On disk each process writes its part next to the checkpoint and reads any part. The checkpoint names
the files that belong to it, so a stop between two of them leaves the last checkpoint complete. Any
number of processes can continue from the parts of any other number.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch import distributed as dist

from midspan.atomic_write import atomic_write
from midspan.errors import FormatError
from midspan.losses import RecognitionLoss
from midspan.losses.partial_fc import PartialFC
from midspan.losses.sharded import world
from midspan.training.settings import TrainSettings

BETAS, EPSILON = (0.9, 0.999), 1e-8  # torch's AdamW


class ClassWeightOptimiser:
    """SGD with momentum or AdamW, as in [train], for the class weights of this process."""

    def __init__(self, loss: PartialFC, settings: TrainSettings) -> None:
        self.loss = loss
        self.settings = settings
        adamw = settings.optimiser == "adamw"
        moments = ("first", "second") if adamw else ("momentum",)
        # everything that a checkpoint holds: the weights, and the optimiser state of each class
        self.tensors: dict[str, Tensor] = {"rows": loss.held.rows}
        if loss.held.bias is not None:
            self.tensors["bias"] = loss.held.bias
        if loss.fixed:  # by a method: not trained
            return
        for name in tuple(self.tensors):
            for moment in moments:
                self.tensors[f"{name}.{moment}"] = torch.zeros_like(self.tensors[name])
        if adamw:  # how often each class was drawn
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
        """To change in place: the tensor itself, or a copy that `_put` writes back."""
        return self.tensors[name] if index is None else self.tensors[name][index]

    def _put(self, name: str, index: Tensor | None, values: Tensor) -> None:
        if index is not None:
            self.tensors[name].index_copy_(0, index, values)


def class_weight_optimiser(
    loss: RecognitionLoss, settings: TrainSettings
) -> ClassWeightOptimiser | None:
    """None for a classifier whose weights are ordinary parameters."""
    if isinstance(loss, PartialFC):
        return ClassWeightOptimiser(loss, settings)
    return None


def clip(
    parameters: Iterable[Tensor], weights: ClassWeightOptimiser | None, *, limit: float
) -> None:
    """As torch's clip_grad_norm_, with the class weights of all processes in the norm."""
    if weights is None or weights.loss.drawn is None:
        nn.utils.clip_grad_norm_(parameters, limit)
        return
    drawn = weights.loss.drawn
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
    factor = (limit / (squares.sqrt() + 1e-6)).clamp_max(1.0)  # as in torch
    for gradient in (*own, *shared):
        gradient.mul_(factor)


# ---- files --------------------------------------------------------------------------------------


def rows_folder(checkpoint: Path) -> Path:
    return checkpoint.with_suffix(".rows")


def save_class_weights(
    checkpoint: Path, weights: ClassWeightOptimiser, *, epoch: int, step: int
) -> str:
    """Save the part of this process. Returns the name that `load_class_weights` takes."""
    held, (_, processes) = weights.loss.held, world()
    name = f"{epoch}-{step}-of-{processes}"
    folder = rows_folder(checkpoint)
    with atomic_write(folder / f"{name}.{held.first}.safetensors") as temporary:
        save_file(
            {key: value.detach().cpu().contiguous() for key, value in weights.tensors.items()},
            temporary,
            metadata={key: str(getattr(held, key)) for key in ("first", "last", "total")},
        )
    return name


def load_class_weights(checkpoint: Path, weights: ClassWeightOptimiser, *, name: str) -> None:
    """Load the part of this process from the parts of all processes that saved."""
    held, loaded = weights.loss.held, 0
    folder = rows_folder(checkpoint)
    try:
        for file in folder.glob(f"{name}.*.safetensors"):
            with safe_open(file, framework="pt") as opened:
                facts = opened.metadata() or {}
                first, last = int(facts["first"]), int(facts["last"])
                if int(facts["total"]) != held.total or set(opened.keys()) != set(weights.tensors):
                    raise FormatError(f"{file}: holds the weights of another classifier")
                start, stop = max(first, held.first), min(last, held.last)
                if start >= stop:
                    continue
                loaded += stop - start
                for key, target in weights.tensors.items():
                    piece = opened.get_slice(key)[start - first : stop - first]
                    target[start - held.first : stop - held.first] = piece.to(target.device)
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise FormatError(
            f"{folder}: not readable ({error}); start again with `restart`"
        ) from error
    if loaded != held.last - held.first:
        raise FormatError(
            f"{folder}: of the classes {held.first} to {held.last} only {loaded} are there; bring "
            "back all files of the checkpoint, or start again with `restart`"
        )


def drop_class_weights(checkpoint: Path, *, keep: str = "") -> None:
    """Remove files that no checkpoint needs any more; all of them unless `keep` names some."""
    folder = rows_folder(checkpoint)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for file in folder.iterdir():
        if not file.name.startswith(f"{keep}."):
            file.unlink(missing_ok=True)


def whole_classifier(loss: RecognitionLoss, *, group: dist.ProcessGroup | None) -> RecognitionLoss:
    """In the first process the loss with all its class weights; every process must call it."""
    if not isinstance(loss, PartialFC):
        return loss
    held = loss.held
    loss.base.rows = _collected(held.rows, total=held.total, group=group)
    if held.bias is not None:
        loss.base.bias = _collected(held.bias, total=held.total, group=group)
    return loss.base


def _collected(own: Tensor, *, total: int, group: dist.ProcessGroup | None) -> nn.Parameter | None:
    rank, processes = world()
    part = own.detach().cpu().contiguous()
    if rank > 0:
        dist.send(part, dst=0, group=group)
        return None
    whole = torch.empty(total, *part.shape[1:], dtype=part.dtype)
    whole[: len(part)] = part
    for other in range(1, processes):
        dist.recv(
            whole[total * other // processes : total * (other + 1) // processes], other, group
        )
    return nn.Parameter(whole, requires_grad=False)
