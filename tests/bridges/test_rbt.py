from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.bridges import RBT, Ridge, load_bridge
from midspan.bridges.base import Float64
from midspan.bridges.rbt import _folded, _network
from midspan.errors import DataError, SpaceMismatch
from midspan.spaces import Embeddings, Space
from tests.bridges.worlds import encoders, own_found_first

torch = pytest.importorskip("torch")


def test_before_training_it_is_ridge() -> None:
    old, new = encoders(80, target_dim=9)
    start = RBT(epochs=0).fit(old, new).apply(old.vectors)
    np.testing.assert_allclose(start, Ridge().fit(old, new).apply(old.vectors), atol=1e-6)


def test_numpy_equals_torch_with_folded_batch_norm() -> None:
    old, new = encoders(80, target_dim=9)
    bridge = RBT(epochs=0, hidden=5, paths=3, depth=2).fit(old, new)
    torch.manual_seed(0)
    network = _network(9, 5, 3, 2)
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm1d):
            torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
            torch.nn.init.normal_(layer.bias)
            torch.nn.init.normal_(layer.running_mean)
            torch.nn.init.uniform_(layer.running_var, 0.5, 2.0)
    vars(bridge).update(_folded(network))
    network.eval()
    rows = torch.tensor(old.vectors) / torch.tensor(old.vectors).norm(dim=1, keepdim=True)
    with torch.no_grad():
        expected = network(rows @ torch.tensor(bridge.weight_) + torch.tensor(bridge.bias_))
    result = bridge.unnormalised(old.vectors)
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-5, atol=1e-5)


def slow_loss(bridge: RBT, g: Float64, q: Float64, w: Float64, y: list[int]) -> float:
    """The three terms in loops."""
    similarity = np.mean([np.sum((g[i] - q[i]) ** 2) for i in range(len(g))])

    def probabilities(z: Float64) -> Float64:
        logits: Float64 = np.exp(bridge.scale / bridge.temperature * (w @ z))
        logits /= logits.sum()
        return logits

    def divergence(p: Float64, r: Float64) -> float:
        return float(np.sum(p * np.log(p / r)))

    pairs = [(probabilities(a), probabilities(b)) for a, b in zip(q, g, strict=True)]
    kl = np.mean([divergence(p, r) for p, r in pairs])
    if bridge.mode == "unified":
        kl = 0.5 * (kl + np.mean([divergence(r, p) for p, r in pairs]))
    classify = 0.0
    for side in (g, q):
        for z, label in zip(side, y, strict=True):
            logits = bridge.scale * (w @ z)
            logits[label] -= bridge.scale * bridge.margin
            classify += (np.log(np.sum(np.exp(logits))) - logits[label]) / len(g)
    return float(bridge.similarity * similarity + bridge.kl * kl + bridge.classification * classify)


@pytest.mark.parametrize("mode", ["m2m", "unified"])
def test_the_three_losses_against_loops(mode: str) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((4, 6)), rng.standard_normal((4, 6)), rng.standard_normal((3, 6))]
    g, q, w = (row / np.linalg.norm(row, axis=1, keepdims=True) for row in rows)
    y = [0, 2, 1, 2]
    bridge = RBT(
        mode=mode,  # type: ignore[arg-type]
        scale=8.0,
        margin=0.2,
        temperature=2.0,
        similarity=0.7,
        kl=1.3,
        classification=0.4,
    )
    result = bridge._loss(torch.tensor(g), torch.tensor(q), torch.tensor(w), torch.tensor(y))
    assert float(result) == pytest.approx(slow_loss(bridge, g, q, w, y), abs=1e-6)


def test_only_unified_mode_moves_the_query_side_through_kl() -> None:
    torch.manual_seed(0)
    query = torch.nn.functional.normalize(torch.randn(4, 6)).requires_grad_()
    gallery = torch.nn.functional.normalize(torch.randn(4, 6))
    head = torch.nn.functional.normalize(torch.randn(3, 6))
    for bridge, moved in (
        (RBT(similarity=0.0), False),
        (RBT(similarity=0.0, mode="unified"), True),
    ):
        (slope,) = torch.autograd.grad(bridge._loss(gallery, query, head, None), query)
        assert bool(slope.any()) is moved


def test_the_query_sides_classification_has_a_gradient_in_m2m_mode() -> None:
    torch.manual_seed(0)
    gallery, query = (torch.nn.functional.normalize(torch.randn(4, 6)) for _ in range(2))
    head = torch.randn(3, 6, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 0])
    bridge = RBT(similarity=0.0, kl=0.0)
    unit = torch.nn.functional.normalize(head)
    both = bridge._loss(gallery, query, unit, labels)
    own = bridge._loss(gallery, gallery, unit, labels) / 2  # the gallery's part alone
    (all_of_it,) = torch.autograd.grad(both, head, retain_graph=True)
    (without_query,) = torch.autograd.grad(own, head)
    assert (all_of_it - without_query).abs().max() > 1e-3


def test_a_floor_of_epochs_is_kept() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(16), 8)
    x = (rng.normal(size=(16, 6))[labels] + 0.1 * rng.normal(size=(128, 6))).astype(np.float32)
    ids = np.arange(128).astype(np.str_)
    source = Embeddings(ids, x, Space("s", 6), {"labels": labels})
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0].astype(np.float32)
    target = Embeddings(ids, x @ rotation, Space("t", 6), {"labels": labels})
    free = RBT(epochs=4, depth=1).fit(source, target)
    held = RBT(epochs=4, min_epochs=3, depth=1).fit(source, target)
    assert free.epochs_ >= 0
    assert held.epochs_ >= 3


def test_without_labels_the_classification_term_falls_away() -> None:
    old, new = encoders(80, labelled=False)
    bridge = RBT(epochs=1, depth=1, paths=1).fit(old, new)
    assert own_found_first(new, bridge.transform(old)) > 0.1


def test_unified_maps_both_sides_into_a_third_space(tmp_path: Path) -> None:
    old, new = encoders(400, target_dim=10)
    both = RBT(mode="unified", epochs=3, depth=2, paths=2).fit(old[:300], new[:300])
    assert not both.target.same_as(new.space)
    assert both.other.source.same_as(new.space)
    assert both.other.target.same_as(both.target)
    gallery, queries = both.transform(old[300:]), both.other.transform(new[300:])
    assert own_found_first(queries, gallery) > 0.1
    again = load_bridge(both.save(tmp_path / "both"))
    assert isinstance(again, RBT)
    assert np.array_equal(again.other.apply(new.vectors), both.other.apply(new.vectors))
    with pytest.raises(SpaceMismatch, match="expected vectors in 'old'"):
        both.transform(new)


def test_another_fit_is_another_third_space() -> None:
    old, new = encoders(120)
    spaces = [
        RBT(mode="unified", epochs=1, depth=1, paths=1).fit(old[:n], new[:n]).target
        for n in (100, 120)
    ]
    assert not spaces[0].same_as(spaces[1])


def test_unified_without_labels_is_refused() -> None:
    old, new = encoders(80, labelled=False)
    with pytest.raises(DataError, match=r"needs a 'labels' column.*mode='m2m'"):
        RBT(mode="unified").fit(old, new)
    with pytest.raises(DataError, match="only a bridge of mode 'unified'"):
        _ = RBT(epochs=0).fit(old, new).other
