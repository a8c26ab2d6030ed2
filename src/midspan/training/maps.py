"""Maps that a method learns with the encoder, saved as bridges: NumPy applies them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from midspan.bridges import Bridge, load_bridge
from midspan.bridges.rbt import RBT
from midspan.methods.transformation import Transformation
from midspan.spaces import FloatArray, Space
from midspan.training.folders import BRIDGES

DIRECTIONS = ("backward", "forward")


def save_maps(
    maps: Mapping[str, nn.Module], *, run: Path, new: Space, old: Space, images: int
) -> dict[str, Bridge]:
    """Bridges by direction, written into the run folder; `images` is what they were learnt on."""
    bridges: dict[str, Bridge] = {}
    for direction, module in maps.items():
        source, target = (new, old) if direction == "backward" else (old, new)
        assert isinstance(module, Transformation), f"{direction}: {type(module).__name__}"
        bridge = as_bridge(module, source=source, target=target, images=images)
        bridge.save(run / BRIDGES / direction)
        bridges[direction] = bridge
    return bridges


def load_maps(run: Path) -> dict[str, Bridge]:
    """The bridges in this run folder, by direction; often none."""
    folders = {direction: run / BRIDGES / direction for direction in DIRECTIONS}
    return {name: load_bridge(folder) for name, folder in folders.items() if folder.is_dir()}


def as_bridge(module: Transformation, *, source: Space, target: Space, images: int) -> RBT:
    """The same function as an `rbt` bridge; its layers are x·weight + bias, then PReLU."""
    bridge = RBT(depth=module.depth, paths=module.paths, hidden=module.hidden)
    bridge._source, bridge._target = source, target
    bridge.n_pairs_ = images
    bridge.weight_, bridge.bias_ = _array(module.weight), _array(module.bias)
    if module.depth:
        vars(bridge).update(_layers(module))
    return bridge


def _layers(module: Transformation) -> dict[str, FloatArray]:
    """Names and shapes as the bridge has them: (depth, paths, …)."""
    # there is one bias for the sum of the paths, and no PReLU after their last layer
    up_bias = (module.up_bias / module.paths).unsqueeze(1).expand(-1, module.paths, -1)
    tensors = {
        "down_weight_": module.down_weight,
        "down_bias_": module.down_bias,
        "down_slope_": module.down_slope.unsqueeze(2),
        "middle_weight_": module.middle_weight,
        "middle_bias_": module.middle_bias,
        "middle_slope_": module.middle_slope.unsqueeze(2),
        "up_weight_": module.up_weight,
        "up_bias_": up_bias,
        "up_slope_": torch.ones(module.depth, module.paths, 1),
    }
    return {name: _array(tensor) for name, tensor in tensors.items()}


def _array(tensor: torch.Tensor) -> FloatArray:
    values: FloatArray = tensor.detach().cpu().float().numpy()
    return values.copy()  # not the memory of a module that may continue to learn
