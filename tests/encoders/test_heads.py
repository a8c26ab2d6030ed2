from __future__ import annotations

import pytest
import torch

from midspan.config import look_up
from midspan.encoders.heads import HEADS, GeM, Head, Linear, LinearBN, Pooled
from midspan.errors import EncoderError


@pytest.mark.parametrize("name", HEADS)
def test_head_maps_a_feature_map_to_vectors(name: str) -> None:
    head: Head = look_up(HEADS, name, what="head")(features=6, dim=6)
    assert head.name == name
    z = head(torch.rand(4, 6, 3, 2))
    assert z.shape == (4, 6)
    if any(True for _ in head.parameters()):
        z.sum().backward()
        assert all(p.grad is not None for p in head.parameters())


def test_gem_equals_the_generalised_mean() -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    head = GeM(features=3, dim=3).double()
    with torch.no_grad():
        head.p.fill_(2.5)
        head.project.weight.copy_(torch.eye(3))
        head.project.bias.zero_()
    expected = torch.empty(2, 3, dtype=torch.float64)
    for b in range(2):
        for c in range(3):
            values = [float(v) ** 2.5 for v in x[b, c].reshape(-1)]
            expected[b, c] = (sum(values) / len(values)) ** (1 / 2.5)
    torch.testing.assert_close(head(x), expected)


def test_gem_lies_between_average_and_maximum() -> None:
    x = torch.rand(5, 4, 3, 3)
    head = GeM(features=4, dim=4)
    assert float(head.p.detach()) == 3.0
    with torch.no_grad():
        head.project.weight.copy_(torch.eye(4))
        head.project.bias.zero_()
        pooled = head(x)
        assert (pooled >= x.mean(dim=(2, 3)) - 1e-6).all()
        assert (pooled <= x.amax(dim=(2, 3)) + 1e-6).all()
        head.p.fill_(1.0)
        torch.testing.assert_close(head(x), x.mean(dim=(2, 3)))


def test_gem_has_a_finite_gradient_at_zero() -> None:
    x = torch.zeros(2, 3, 2, 2, requires_grad=True)
    head = GeM(features=3, dim=2)
    head(x).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert head.p.grad is not None
    assert torch.isfinite(head.p.grad)


def test_gem_on_pooled_features_raises() -> None:
    with pytest.raises(EncoderError, match="feature map"):
        GeM(features=3, dim=2)(torch.rand(4, 3))


def test_linear_and_none_also_take_pooled_features() -> None:
    x = torch.rand(4, 3, 5, 5)
    linear = Linear(features=3, dim=2)
    torch.testing.assert_close(linear(x), linear(x.mean(dim=(2, 3))))
    torch.testing.assert_close(Pooled(features=3, dim=3)(x), x.mean(dim=(2, 3)))


def test_linear_bn_centres_each_dimension() -> None:
    z = LinearBN(features=3, dim=4).train()(torch.rand(64, 3, 2, 2))
    torch.testing.assert_close(z.mean(dim=0), torch.zeros(4), atol=1e-5, rtol=0)
    assert LinearBN(features=3, dim=4).project.bias is None


def test_head_none_keeps_the_features() -> None:
    with pytest.raises(EncoderError, match="the backbone's 3 dims, not 8"):
        Pooled(features=3, dim=8)
