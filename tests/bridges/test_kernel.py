from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import Kernel, Ridge
from midspan.bridges.least_squares import sample_rows
from tests.bridges.worlds import encoders, own_found_first, unit64


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_equals_kernel_ridge_regression_written_out(power: float) -> None:
    old, new = encoders(60)
    x, y = unit64(old.vectors), unit64(new.vectors)
    bent = unit64(np.sign(x) * np.abs(x) ** power)
    gaps = np.sum((bent[:, None] - bent[None]) ** 2, axis=2)
    scale = 2.0 * np.sum(np.var(bent, axis=0))
    kernel = np.exp(-gaps / (2 * 1.5 * scale))
    middle = np.eye(60) - 1.0 / 60
    dual = np.linalg.solve(middle @ kernel @ middle + 0.2 * np.eye(60), middle @ y)
    expected = y.mean(axis=0) + middle @ kernel @ middle @ dual
    bridge = Kernel(width=1.5, power=power, alpha=0.2).fit(old, new)
    np.testing.assert_allclose(
        bridge.unnormalised(old.vectors), expected, atol=1e-3
    )  # it drops tiny directions


@pytest.mark.parametrize("landmarks", [400, 150])
@pytest.mark.parametrize("alpha", [1.0, 0.1])
def test_float32_maps_as_the_normal_equations_in_float64(landmarks: int, alpha: float) -> None:
    """Similarities to the landmarks, whitened, as the inputs of a ridge: no decomposition."""
    old, new = encoders(520, source_dim=48, target_dim=32)
    bridge = Kernel(power=1.0, alpha=alpha, landmarks=landmarks).fit(old[:400], new[:400])
    x, y = unit64(old.vectors), unit64(new.vectors)[:400]
    chosen = sample_rows(400, 0, landmarks)
    z = x[chosen]
    width = 2.0 * 2.0 * 2.0 * np.sum(np.var(z, axis=0))
    near = np.exp(-np.sum((x[:, None] - z[None]) ** 2, axis=2) / width)  # (520, M)
    between = near[chosen]
    if landmarks < 400:  # against noise, as documented there
        between = between + 1e-5 * between.mean() * landmarks * np.eye(landmarks)
    values, vectors = np.linalg.eigh(between)
    kept = values > 1e-9 * values[-1]
    inputs = near @ vectors[:, kept] / np.sqrt(values[kept])
    middle = inputs[:400].mean(axis=0)
    centred = inputs[:400] - middle
    inner = np.linalg.solve(
        centred.T @ centred + alpha * np.eye(centred.shape[1]), centred.T @ (y - y.mean(axis=0))
    )
    wanted = unit64((inputs[400:] - middle) @ inner + y.mean(axis=0))
    np.testing.assert_allclose(bridge.apply(old.vectors[400:]), wanted, atol=2e-3)
    cosines = np.sum(bridge.apply(old.vectors[400:]) * wanted, axis=1)
    assert cosines.min() > 1 - 3e-5  # the cut of tiny directions


def test_bends_where_an_affine_map_cannot() -> None:
    old, new = encoders(500, noise=0.01, labelled=False)
    scores = {
        kind.name: own_found_first(new[300:], kind.fit(old[:300], new[:300]).transform(old[300:]))
        for kind in (Kernel(), Ridge())
    }
    assert scores["kernel"] > scores["ridge"] + 0.1


def test_a_part_of_the_pairs_can_carry_the_map() -> None:
    old, new = encoders(500, noise=0.01, labelled=False)
    bridge = Kernel(landmarks=100).fit(old[:300], new[:300])
    assert bridge.landmarks_.shape == (100, 12)
    assert own_found_first(new[300:], bridge.transform(old[300:])) > 0.3


def test_the_power_is_chosen() -> None:
    old, new = encoders(120)
    assert Kernel().fit(old, new).power_ in (1.0, 0.5)
    assert Kernel(power=0.7).fit(old, new).power_ == 0.7


def test_many_pairs_choose_the_power_on_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = encoders(300, noise=0.01, labelled=False)
    whole = Kernel(landmarks=80).fit(old[:200], new[:200])
    monkeypatch.setattr("midspan.bridges.kernel.POWER_SAMPLE", 60)
    bridge = Kernel(landmarks=80).fit(old[:200], new[:200])
    assert bridge.landmarks_.shape == (80, 12)
    assert bridge.power_ == whole.power_
    assert np.array_equal(bridge.weight_, whole.weight_)  # all pairs fit it, whoever chose
