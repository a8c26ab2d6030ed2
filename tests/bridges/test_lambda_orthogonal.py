from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import LambdaOrthogonal, Procrustes, Ridge
from tests.bridges.worlds import encoders, rotation, unit64


@pytest.mark.parametrize("shape", [(5, 5), (4, 7), (7, 4)])
@pytest.mark.parametrize("threshold", [0.5, 3.0, 50.0])
def test_value_and_slope_of_the_penalty(shape: tuple[int, int], threshold: float) -> None:
    bridge = LambdaOrthogonal(threshold=threshold, weight=1.5, sharpness=0.8)
    matrix = np.random.default_rng(0).standard_normal(shape)
    square = matrix @ matrix.T if shape[0] <= shape[1] else matrix.T @ matrix
    size = np.sqrt(np.sum((square - np.eye(min(shape))) ** 2))
    value, slope = bridge._penalty(matrix)
    assert value == pytest.approx(1.5 * size / (1 + np.exp(-0.8 * (size - threshold))))
    step = 1e-6
    for row in range(shape[0]):
        for column in range(shape[1]):
            up, down = matrix.copy(), matrix.copy()
            up[row, column] += step
            down[row, column] -= step
            expected = (bridge._penalty(up)[0] - bridge._penalty(down)[0]) / (2 * step)
            assert slope[row, column] == pytest.approx(expected, abs=1e-5)


def test_a_rotation_costs_nothing_and_pulls_nowhere() -> None:
    value, slope = LambdaOrthogonal(threshold=0.0)._penalty(rotation(6))
    assert value == pytest.approx(0.0, abs=1e-12)
    assert np.isfinite(slope).all()


def test_between_rotation_and_least_squares() -> None:
    old, new = encoders(200)
    y = unit64(new.vectors)

    def gap(weight: object) -> float:
        matrix = np.asarray(weight, np.float64)
        return float(np.linalg.norm(matrix @ matrix.T - np.eye(len(matrix))))

    def error(bridge: Procrustes | Ridge | LambdaOrthogonal) -> float:
        return float(np.mean(np.sum((bridge.unnormalised(old.vectors) - y) ** 2, axis=1)))

    strict = LambdaOrthogonal(threshold=0.0, weight=1e3).fit(old, new)
    middle = LambdaOrthogonal(threshold=2.0, sharpness=20.0).fit(old, new)
    free = LambdaOrthogonal(threshold=1e3).fit(old, new)
    assert gap(strict.weight_) < 0.05
    assert gap(strict.weight_) < gap(middle.weight_) < 2.2
    assert middle.deviation_ == pytest.approx(gap(middle.weight_), abs=1e-4)
    assert error(strict) > error(middle) > error(free)
    assert error(strict) <= error(Procrustes(center=True).fit(old, new)) + 1e-6
    assert error(free) == pytest.approx(error(Ridge(alpha=0.0).fit(old, new)), rel=1e-2)
