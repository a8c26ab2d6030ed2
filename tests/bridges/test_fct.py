from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from midspan.bridges import FCT, load_bridge
from midspan.bridges.fct import _folded, _network, fastfill_loss
from midspan.errors import DataError, VectorError
from midspan.spaces import Embeddings, FloatArray
from tests.bridges.worlds import embeddings, encoders, own_found_first, unit64

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("weight", [0.5, 0.2])
@pytest.mark.parametrize("error", [0.03, 4.0])
def test_the_fastfill_optimum(weight: float, error: float) -> None:
    best = math.log(error / (2 * weight))
    at = torch.tensor([best], dtype=torch.float64, requires_grad=True)
    loss = fastfill_loss(torch.tensor([error], dtype=torch.float64), at, weight=weight)
    loss.backward()  # type: ignore[no-untyped-call]
    assert at.grad is not None
    assert abs(float(at.grad)) < 1e-12
    for beside in (best - 0.1, best + 0.1):
        other = torch.tensor([beside], dtype=torch.float64)
        assert (
            fastfill_loss(torch.tensor([error], dtype=torch.float64), other, weight=weight) > loss
        )


def test_numpy_equals_torch_with_folded_batch_norm() -> None:
    old, new = encoders(60, target_dim=7)
    side = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    old = old.with_columns({"extra": side})
    bridge = FCT(side="extra", width=16, epochs=1).fit(old, new)
    torch.manual_seed(0)
    network = _network(12, 3, 7, 16, 8)
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm1d):
            torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
            torch.nn.init.normal_(layer.bias)
            torch.nn.init.normal_(layer.running_mean)
            torch.nn.init.uniform_(layer.running_var, 0.5, 2.0)
    vars(bridge).update(_folded(network))
    network.eval()
    with torch.no_grad():
        expected = network(
            torch.tensor(unit64(old.vectors), dtype=torch.float32), torch.tensor(side)
        )
    np.testing.assert_allclose(
        bridge.transform(old).vectors, unit64(expected.numpy()[:, :-1]), atol=1e-5
    )
    np.testing.assert_allclose(
        bridge.log_variance(old), expected.numpy()[:, -1], rtol=1e-5, atol=1e-5
    )


def hidden_half(count: int) -> tuple[Embeddings, Embeddings, FloatArray]:
    """The old vector misses half of what the new one shows; the side column has it."""
    rng = np.random.default_rng(0)
    items = rng.standard_normal((count, 8))
    old = embeddings(items[:, :4] @ rng.standard_normal((4, 8)), "old", metric="l2")
    new = embeddings(items @ rng.standard_normal((8, 8)), "new", metric="l2")
    return old, new, items[:, 4:].astype(np.float32)


def test_side_information_helps(tmp_path: Path) -> None:
    old, new, side = hidden_half(400)
    old = old.with_columns({"extra": side})
    plain = FCT(width=64, epochs=20).fit(old[:300], new[:300])
    informed = FCT(side="extra", width=64, epochs=20).fit(old[:300], new[:300])
    errors = [
        float(np.mean((bridge.transform(old[300:]).vectors - new.vectors[300:]) ** 2))
        for bridge in (plain, informed)
    ]
    assert errors[1] < 0.7 * errors[0]
    again = load_bridge(informed.save(tmp_path / "fct"))
    assert np.array_equal(again.transform(old).vectors, informed.transform(old).vectors)
    with pytest.raises(VectorError, match="also needs the column 'extra'"):
        informed.apply(old.vectors)
    with pytest.raises(DataError, match="no column 'extra'"):
        informed.transform(Embeddings(old.ids, old.vectors, old.space))
    with pytest.raises(VectorError, match="has 2 dims; this bridge was fitted with 4"):
        informed.transform(old.with_columns({"extra": side[:, :2]}))


def test_the_uncertainty_rises_where_the_pairs_are_noisy() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((800, 6))
    noisy = vectors[:, 0] > 0
    target = vectors @ rng.standard_normal((6, 6)) + noisy[:, None] * 2.0 * rng.standard_normal(
        (800, 6)
    )
    old = embeddings(vectors, "old", metric="l2")
    new = embeddings(target, "new", metric="l2")
    bridge = FCT(width=64, epochs=30).fit(old[:600], new[:600])
    doubt = bridge.log_variance(old[600:])
    assert doubt[noisy[600:]].mean() > doubt[~noisy[600:]].mean() + 0.5
    with pytest.raises(DataError, match="uncertainty=False"):
        FCT(width=16, epochs=1, uncertainty=False).fit(old, new).log_variance(old)


def test_labels_are_optional() -> None:
    for labelled in (True, False):
        old, new = encoders(300, labelled=labelled)
        bridge = FCT(width=64, epochs=20).fit(old[:240], new[:240])
        assert own_found_first(new[240:], bridge.transform(old[240:])) > 0.1
