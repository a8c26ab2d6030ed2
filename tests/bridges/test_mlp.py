from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import MLP, Ridge
from tests.bridges.worlds import encoders, own_found_first

torch = pytest.importorskip("torch")


def test_before_training_it_is_ridge() -> None:
    old, new = encoders(80)
    start = MLP(epochs=0).fit(old, new).apply(old.vectors)
    np.testing.assert_allclose(start, Ridge().fit(old, new).apply(old.vectors), atol=1e-6)


def test_numpy_equals_torch() -> None:
    old, new = encoders(100)
    bridge = MLP(hidden=24, epochs=0).fit(old, new)
    rng = np.random.default_rng(0)
    bridge.out_weight_ = rng.standard_normal((24, 12)).astype(np.float32)
    rows = torch.tensor(old.vectors) / torch.tensor(old.vectors).norm(dim=1, keepdim=True)
    hidden = rows @ torch.tensor(bridge.hidden_weight_) + torch.tensor(bridge.hidden_bias_)
    expected = (
        rows @ torch.tensor(bridge.weight_)
        + torch.tensor(bridge.bias_)
        + torch.nn.functional.gelu(hidden) @ torch.tensor(bridge.out_weight_)
    )
    np.testing.assert_allclose(bridge.unnormalised(old.vectors), expected.numpy(), atol=1e-5)


def test_inputs_are_folded_into_the_first_layer() -> None:
    """The network sees centred, scaled rows in training; the arrays take raw ones."""
    old, new = encoders(100)
    bridge = MLP(hidden=24, epochs=0).fit(old, new)
    rows = old.vectors / np.linalg.norm(old.vectors, axis=1, keepdims=True)
    hidden = rows @ bridge.hidden_weight_ + bridge.hidden_bias_
    assert 0.1 < hidden.std() < 3.0  # large enough to bend


@pytest.mark.slow
def test_training_learns_what_is_not_affine() -> None:
    old, new = encoders(1500, noise=0.01, labelled=False)
    train, test = slice(0, 1300), slice(1300, 1500)
    mlp = MLP(epochs=30).fit(old[train], new[train])
    ridge = Ridge().fit(old[train], new[train])
    assert mlp.epochs_ > 0
    share = own_found_first(new[test], mlp.transform(old[test]))
    assert share > own_found_first(new[test], ridge.transform(old[test])) + 0.1


def test_the_random_state_of_the_caller_is_kept() -> None:
    old, new = encoders(60)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    MLP(epochs=1, hidden=8).fit(old, new)
    assert torch.equal(torch.rand(1), expected)


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = encoders(60)
    MLP(epochs=1, hidden=8, progress=True).fit(old, new)
    captured = capsys.readouterr()
    assert "mlp search" in captured.err
    assert captured.out == ""
