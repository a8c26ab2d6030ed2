"""The maps that methods learn: shapes, the start, and one block by plain loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods.transformation import Maps, Transformation
from tests.methods.small import DIM, drawn, gradient_is_right, old_artifacts


def stirred(depth: int, inputs: int = 4, outputs: int = 6) -> Transformation:
    """All parameters away from their start."""
    module = Transformation(drawn(inputs, outputs, seed=0), depth=depth, paths=3, hidden=5)
    for place, parameter in enumerate(module.parameters()):
        parameter.data += 0.3 * drawn(*parameter.shape, seed=20 + place)
    return module.double()


def slow(module: Transformation, x: Tensor) -> Tensor:
    z: Tensor = x / x.norm() @ module.weight + module.bias
    for block in range(module.depth):
        step = torch.zeros_like(z)
        for path in range(module.paths):
            t = z
            for layer in ("down", "middle"):
                weight = getattr(module, f"{layer}_weight")[block, path]
                slope = getattr(module, f"{layer}_slope")[block, path].item()
                t = weight.T @ t + getattr(module, f"{layer}_bias")[block, path]
                t = torch.stack([v if v > 0 else slope * v for v in t])
            step = step + module.up_weight[block, path].T @ t
        step = step + module.up_bias[block]
        z = z + step
    return z


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_transformation_of_a_batch_equals_row_by_row(depth: int) -> None:
    module = stirred(depth)
    x = drawn(7, 4, seed=3).double()
    torch.testing.assert_close(module(x), torch.stack([slow(module, row) for row in x]))
    gradient_is_right(lambda rows: module(rows).square().sum(), x)


def test_training_and_evaluation_are_the_same_function() -> None:
    module = stirred(2)
    x = drawn(7, 4, seed=3).double()
    together = module.train()(x)
    torch.testing.assert_close(module.eval()(x), together)
    torch.testing.assert_close(module.train()(x[:1]), together[:1])  # no statistics of the batch


def test_maps_start_as_the_identity_for_equal_dims() -> None:
    maps = Maps(old_artifacts(), dim=DIM, depth=4)
    x = F.normalize(drawn(6, DIM, seed=4))
    for one in maps.by_direction().values():
        torch.testing.assert_close(one(x), x)


@pytest.mark.parametrize("dim", [DIM - 1, DIM + 3])
def test_maps_start_as_two_directions_of_one_rotation(dim: int) -> None:
    maps = Maps(old_artifacts(), dim=dim, depth=2)
    backward, forward = maps.to_old, maps.to_new
    assert backward.weight.shape == (dim, DIM)
    assert forward.weight.shape == (DIM, dim)
    torch.testing.assert_close(backward.weight, forward.weight.T)
    smaller = min(dim, DIM)
    product = forward.weight @ backward.weight if dim > DIM else backward.weight @ forward.weight
    torch.testing.assert_close(product, torch.eye(smaller), atol=1e-5, rtol=0)
    backward.weight.data += 1  # the two are learnt apart
    assert not torch.allclose(backward.weight, forward.weight.T)


def test_every_parameter_learns_within_two_steps() -> None:
    """The last layers start at 0; after they have moved, nothing is left without gradient."""
    module = Transformation(drawn(4, 6, seed=0), depth=2)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    x, y = drawn(30, 4, seed=1), drawn(30, 6, seed=2)
    for _ in range(2):
        optimiser.zero_grad()
        (1 - F.cosine_similarity(module(x), y)).mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0, name


def test_transformation_negative_depth_raises_config_error() -> None:
    with pytest.raises(ConfigError, match=r"depth >= 0.*got -1"):
        Maps(old_artifacts(), dim=DIM, depth=-1)
    old = old_artifacts()
    lengths = replace(old, space=replace(old.space, metric="l2"))
    with pytest.raises(ConfigError, match="also counts lengths"):
        Maps(lengths, dim=DIM, depth=0)
