"""L2: value and gradient from the equation, the dead zone, and dims that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from midspan.errors import ConfigError
from midspan.methods import OldArtifacts
from midspan.methods.l2 import L2
from tests.methods.small import (
    CLASSES,
    DIM,
    a_batch,
    gradient_is_right,
    old_artifacts,
    only_vectors,
    prepared,
    renamed,
    renamed_batch,
    same_as_reference,
)

ROWS = [0, 1, 2, 3, 7, 9]


def slow(new: Tensor, old: Tensor, *, dead_zone: float) -> Tensor:
    losses = []
    for one, other in zip(new, old, strict=True):
        squares = [
            (a - b) ** 2 for a, b in zip(one / one.norm(), other / other.norm(), strict=True)
        ]
        distance = torch.stack(squares).sum().sqrt()
        losses.append(torch.relu(distance - dead_zone) ** 2)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("dead_zone", [0.0, 0.9, 1.4])
def test_l2_value_and_gradient_match_the_reference(dead_zone: float) -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    method = prepared(L2(weight=3.0, dead_zone=dead_zone), old)
    assert some.old is not None
    reference = 3.0 * slow(some.vectors, some.old, dead_zone=dead_zone)
    assert reference.item() > 0
    same_as_reference(method.terms(some)["l2"], reference, some.vectors)
    gradient_is_right(lambda z: method.terms(replace(some, vectors=z))["l2"], some.vectors)


@pytest.mark.parametrize("dim", [DIM - 1, DIM + 3])
def test_l2_other_dims_use_linear_maps_in_both_directions(dim: int) -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old, dim=dim)
    method = prepared(L2(weight=2.0), old, dim=dim)
    assert method.directions == ("backward", "forward")
    assert set(method.maps()) == {"backward", "forward"}
    assert method.learnt is not None
    backward, forward = method.learnt.to_old, method.learnt.to_new
    assert some.old is not None
    there = torch.stack([z / z.norm() @ backward.weight + backward.bias for z in some.vectors])
    here = torch.stack([o @ forward.weight + forward.bias for o in some.old])
    reference = slow(there, some.old, dead_zone=0.0) + slow(some.vectors, here, dead_zone=0.0)
    learnt = [some.vectors, *method.parameters()]
    same_as_reference(method.terms(some)["l2"], reference, *learnt)


def test_the_same_vectors_cost_nothing_and_have_a_finite_gradient() -> None:
    old = old_artifacts()
    for dead_zone in (0.0, 0.1):
        some = a_batch([4], old)
        assert some.old is not None
        some.vectors.data = 3 * some.old  # length does not count
        value = prepared(L2(dead_zone=dead_zone), old).terms(some)["l2"]
        (gradient,) = torch.autograd.grad(value, some.vectors)
        assert value.item() == pytest.approx(0.0, abs=1e-12)
        assert gradient.abs().max() < 1e-6


def test_inside_the_dead_zone_nothing_pulls() -> None:
    old = old_artifacts()
    some = a_batch(ROWS, old)
    value = prepared(L2(dead_zone=2.0), old).terms(some)["l2"]
    assert value.item() == 0.0
    (gradient,) = torch.autograd.grad(value, some.vectors)
    assert gradient.abs().sum() == 0


def test_labels_and_classifiers_change_nothing() -> None:
    some = a_batch(ROWS, old_artifacts())
    before = prepared(L2(), old_artifacts()).terms(some)["l2"]
    for old, batch in (
        (renamed(old_artifacts()), renamed_batch(some)),
        (only_vectors(), some),
    ):
        assert isinstance(old, OldArtifacts)
        torch.testing.assert_close(prepared(L2(), old).terms(batch)["l2"], before)


def test_equal_dims_are_compared_directly() -> None:
    method = prepared(L2(), old_artifacts())
    assert method.directions == ("direct",)
    assert method.maps() == {}
    assert list(method.parameters()) == []


def test_l2_impossible_settings_raise_config_error() -> None:
    with pytest.raises(ConfigError, match="l2 needs the old encoder"):
        L2().prepare(old=None, num_classes=CLASSES, dim=DIM)
    with pytest.raises(ConfigError, match=r"dead_zone >= 0, got -0\.1"):
        L2(dead_zone=-0.1)
