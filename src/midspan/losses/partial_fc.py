"""Partial FC: the classes of a softmax in parts, one part a process, and of each part a sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from midspan.errors import ConfigError
from midspan.losses.base import RecognitionLoss
from midspan.losses.sharded import cross_entropy, for_all, world

AT_ONCE = 2**22  # numbers of the initial class weights that are drawn at a time


@dataclass(slots=True)
class ClassPart:
    """The rows of the classes `first` to `last` of `total`: those of one process."""

    first: int
    last: int
    total: int
    rows: Tensor  # (last - first, D)
    bias: Tensor | None  # (last - first,)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What counts in one step. Gradients are of these rows (S, D), never of all of them."""

    index: Tensor | None  # (S,) rows of the part, ascending; None: all of them
    rows: Tensor  # (S, D) a leaf
    bias: Tensor | None  # (S,) a leaf


class PartialFC(RecognitionLoss):
    """Cross-entropy as `base` has it, over the classes of all processes; each holds a part.

    All processes see the vectors of the whole batch (midspan.losses.gather). Each computes the
    logits (B, S) of the S classes that it has drawn; the largest logit and the sum of the softmax
    are reduced over all, and the gradients of the vectors are added up. At rate 1 this is the
    whole softmax, in value and gradient, on any number of processes.

    At a lower rate the classes of the batch always count, and the others by chance, so that
    rate · C of all C do on average. Every class is drawn independently, not a fixed number in each
    process, so that the sample does not depend on the number of processes (departs).

    Papers: arXiv:2010.05222, arXiv:2203.15565. Default: rate 1, nothing is left out.

    The rows are no parameters: they must not be averaged over processes, and only those that were
    drawn are updated (midspan.training.class_weights), by what `drawn` remembers of the last step.
    """

    def __init__(self, base: RecognitionLoss, *, rate: float = 1.0) -> None:
        super().__init__()
        if not base.shardable:
            raise ConfigError(
                f"[classifier] sharded = true: {type(base).__name__} is not a softmax over class "
                "weights; use [loss] name = softmax, normalised-softmax, cosface or arcface"
            )
        if not 0 < rate <= 1:
            raise ConfigError(
                f"[classifier] sample_rate: expected 0 < sample_rate <= 1, got {rate}"
            )
        self.base = base
        self.rate = rate
        self.proxy_lr = base.proxy_lr
        self.fixed = False  # weights that a method provides are not trained
        self.drawn: Drawn | None = None
        self._held: ClassPart | None = None

    @property
    def held(self) -> ClassPart:
        if self._held is None:
            raise RuntimeError("PartialFC.prepare was not called")
        return self._held

    def prepare(self, *, num_classes: int, dim: int) -> None:
        """Draws what the whole classifier would draw, and keeps the own part."""
        rank, processes = world()
        if num_classes < processes:
            raise ConfigError(
                f"{num_classes} classes cannot be split over {processes} processes; leave out "
                "[classifier] sharded"
            )
        first, last = (num_classes * number // processes for number in (rank, rank + 1))
        rows = torch.empty(last - first, dim)
        bound = 1.0 / math.sqrt(dim)
        step = max(1, AT_ONCE // dim)
        for start in range(0, num_classes, step):
            stop = min(start + step, num_classes)
            block = torch.empty(stop - start, dim).uniform_(-bound, bound)
            here = slice(max(start, first), max(start, first, min(stop, last)))
            rows[here.start - first : here.stop - first] = block[
                here.start - start : here.stop - start
            ]
        bias = torch.zeros(last - first) if self.base.has_bias else None
        self._held = ClassPart(first, last, num_classes, rows, bias)

    def fix_rows(self, rows: Tensor) -> None:
        held = self.held
        if rows.shape != (held.total, held.rows.shape[1]):
            raise ConfigError(
                f"fixed class weights: expected shape {(held.total, held.rows.shape[1])}, got "
                f"{tuple(rows.shape)}"
            )
        held.rows = rows[held.first : held.last].detach().clone()
        self.fixed = True

    def logits(self, vectors: Tensor) -> None:
        """No process has all of them."""
        return None

    def typical_scale(self) -> float:
        return self.base.typical_scale()

    def part(
        self,
        vectors: Tensor,
        labels: Tensor,
        dims: slice,
        *,
        confidence: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> Tensor:
        if classes is not None:
            raise ConfigError(
                f"[train] own_classes = true cannot be used with {type(self).__name__}"
            )
        return self._value(vectors, labels, dims)

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        return self._value(vectors, labels, slice(None))

    def class_rows(self) -> Tensor:
        raise RuntimeError("the class weights are in parts; use `held`")

    def _value(self, vectors: Tensor, labels: Tensor, dims: slice) -> Tensor:
        drawn = self._draw(labels)
        self.drawn = drawn if self.training and torch.is_grad_enabled() else None
        logits = self.base.logits_of(
            for_all(vectors[:, dims]), drawn.rows[:, dims], drawn.bias
        )  # (B, S)
        held = self.held
        images = ((labels >= held.first) & (labels < held.last)).nonzero().squeeze(1)
        places = labels[images] - held.first
        if drawn.index is not None:
            places = torch.searchsorted(drawn.index, places)
        change = self.base.margin_on(logits[images, places])
        logits = logits.index_put_((images, places), change, accumulate=True)  # no second (B, S)
        return cross_entropy(logits, images=images, places=places)

    def _draw(self, labels: Tensor) -> Drawn:
        """From torch's global generator, which is the same in all processes at this point."""
        held, index = self.held, None
        if self.rate < 1:
            # on the CPU: a seed means the same anywhere; over all classes: all draw the same
            taken = torch.zeros(held.total, dtype=torch.bool)
            taken[labels.cpu()] = True
            count = int(taken.sum())
            chance = (self.rate * held.total - count) / max(1, held.total - count)
            taken |= torch.rand(held.total) < chance
            index = taken[held.first : held.last].nonzero().squeeze(1).to(labels.device)

        def leaf(values: Tensor) -> Tensor:
            some = values.detach() if index is None else values[index]
            return some.requires_grad_(not self.fixed)

        return Drawn(index, leaf(held.rows), None if held.bias is None else leaf(held.bias))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PartialFC:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._held is not None:
            held = self._held
            held.rows = fn(held.rows)
            held.bias = None if held.bias is None else fn(held.bias)
        return self
