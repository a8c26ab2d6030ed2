"""Checkpoints: everything the loop needs to continue to the same weights, in one safetensors file.

Random numbers are drawn from (seed, step), so no generator state has to be kept.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from midspan.atomic_write import atomic_write
from midspan.errors import FormatError
from midspan.training.optimisers import Optimisers


@dataclass(slots=True)
class Position:
    """Where the loop is: the next step, and the sums of the current epoch."""

    epoch: int = 0
    step: int = 0  # inside the epoch
    seen: int = 0  # images of this epoch
    seconds: float = 0.0  # of all sessions together
    sums: dict[str, float] = field(default_factory=dict)
    rows: str = ""  # name of its files of class weights, if the classifier is sharded


def save_checkpoint(
    path: Path, *, modules: nn.Module, optimiser: Optimisers, position: Position
) -> None:
    """A kill while it is written leaves the previous checkpoint intact."""
    tensors = {f"modules.{name}": value for name, value in modules.state_dict().items()}
    for index, state in _optimiser_states(optimiser).items():
        for name, value in state.items():
            tensors[f"optimiser.{index}.{name}"] = value
    with atomic_write(path) as temporary:
        save_file(
            {name: value.detach().cpu().contiguous() for name, value in tensors.items()},
            temporary,
            metadata={"position": json.dumps(asdict(position))},
        )


def load_checkpoint(path: Path, *, modules: nn.Module, optimiser: Optimisers) -> Position:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        position = Position(**json.loads(metadata["position"]))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise FormatError(
            f"{path}: not a checkpoint that can be resumed ({error}); "
            "remove it, or start again with `restart`"
        ) from error
    weights, states = _split(tensors)
    try:
        modules.load_state_dict(weights)
    except RuntimeError as error:
        raise FormatError(f"{path}: belongs to another model ({error})") from error
    saved = optimiser.state_dict()
    saved["state"] = states
    optimiser.load_state_dict(saved)
    return position


def _optimiser_states(optimiser: Optimisers) -> dict[int, dict[str, Tensor]]:
    """State of each parameter by its number; values are tensors in the optimisers we offer."""
    return {
        int(index): {
            name: value if isinstance(value, Tensor) else torch.tensor(value)
            for name, value in state.items()
            if value is not None
        }
        for index, state in optimiser.state_dict()["state"].items()
    }


def _split(
    tensors: dict[str, Tensor],
) -> tuple[dict[str, Tensor], dict[int, dict[str, Tensor]]]:
    weights: dict[str, Tensor] = {}
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, rest = key.partition(".")
        if kind == "modules":
            weights[rest] = value
        else:
            index, _, name = rest.partition(".")
            states.setdefault(int(index), {})[name] = value
    return weights, states
