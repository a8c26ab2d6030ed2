"""The optimisers of a run: for the encoder and the loss, and for what a method learns by SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from midspan.encoders.backbones.base import Backbone
from midspan.losses import RecognitionLoss
from midspan.methods import Method
from midspan.training.settings import TrainSettings


class Optimisers:
    """Several optimisers of disjoint parameters, used as one."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._parts = tuple(parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for part in self._parts for group in part.param_groups]

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """The state of each parameter by its number, counted through all parts."""
        states: dict[int, Any] = {}
        first = 0
        for part in self._parts:
            own = part.state_dict()["state"]
            states |= {first + int(number): state for number, state in own.items()}
            first += _count(part)
        return {"state": states}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        first = 0
        for part in self._parts:
            count = _count(part)
            own = part.state_dict()
            own["state"] = {
                number - first: state
                for number, state in saved["state"].items()
                if first <= number < first + count
            }
            part.load_state_dict(own)
            first += count


def make_optimiser(modules: nn.Module, settings: TrainSettings) -> Optimisers:
    """Weight decay for matrices and kernels only: not for norms and biases.

    Parameters of a method with `sgd_lr` have plain SGD with that rate, by the same schedule:
    AdamW scales every gradient to one size, and so undoes a falling weight of their term.
    """
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    factors: dict[int, float] = {}
    by_sgd: list[nn.Parameter] = []
    for module in modules.modules():
        if isinstance(module, RecognitionLoss):
            factors[id(module.rows)] = module.proxy_lr
        elif isinstance(module, Backbone) and settings.backbone_lr is not None:
            share = settings.backbone_lr / settings.lr
            factors |= {id(parameter): share for parameter in module.parameters()}
        elif isinstance(module, Method) and module.sgd_lr is not None:
            by_sgd = [parameter for parameter in module.parameters() if parameter.requires_grad]
            sgd_factor = module.sgd_lr / settings.lr
    apart = {id(parameter) for parameter in by_sgd}
    for parameter in modules.parameters():
        if parameter.requires_grad and id(parameter) not in apart:
            decay = settings.weight_decay if parameter.ndim > 1 else 0.0
            key = (decay, factors.get(id(parameter), 1.0))
            group = groups.setdefault(key, {"params": [], "weight_decay": decay, "factor": key[1]})
            group["params"].append(parameter)
    parts: list[Optimizer] = []
    if settings.optimiser == "sgd":
        parts.append(SGD(list(groups.values()), lr=settings.lr, momentum=settings.momentum))
    else:
        parts.append(AdamW(list(groups.values()), lr=settings.lr))
    if by_sgd:
        parts.append(
            SGD(
                [{"params": by_sgd, "factor": sgd_factor}],
                lr=settings.lr,
                momentum=settings.momentum,
            )
        )
    return Optimisers(parts)


def _count(part: Optimizer) -> int:
    return sum(len(group["params"]) for group in part.param_groups)
