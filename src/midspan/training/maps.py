"""Maps that a method learns beside the encoder, saved as bridges: NumPy applies them."""

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
    """The bridges that training left in this run folder, by direction; often none."""
    folders = {direction: run / BRIDGES / direction for direction in DIRECTIONS}
    return {name: load_bridge(folder) for name, folder in folders.items() if folder.is_dir()}


def as_bridge(module: Transformation, *, source: Space, target: Space, images: int) -> RBT:
    """The same function as an `rbt` bridge; its layers are x·weight + bias, then PReLU."""
    bridge = RBT(depth=module.depth, paths=module.paths, hidden=module.hidden)
    bridge._source, bridge._target = source, target
    bridge.n_pairs_ = images
    bridge.weight_, bridge.bias_ = _array(module.weight), _array(module.bias)
    if module.depth:
        for layer in ("down", "middle", "up"):
            weight = getattr(module, f"{layer}_weight")  # (depth, paths, inputs, outputs)
            bias = getattr(module, f"{layer}_bias").squeeze(2)  # (depth, paths, outputs)
            slope = getattr(module, f"{layer}_slope").squeeze(3)  # (depth, paths, 1)
            for part, tensor in (("weight", weight), ("bias", bias), ("slope", slope)):
                setattr(bridge, f"{layer}_{part}_", _array(tensor))
    return bridge


def _array(tensor: torch.Tensor) -> FloatArray:
    values: FloatArray = tensor.detach().cpu().float().numpy()
    return values.copy()  # not the memory of a module that may go on learning
