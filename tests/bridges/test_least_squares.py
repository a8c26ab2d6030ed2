"""The solvers against plain loops and plain formulas."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges.base import Float64
from midspan.bridges.least_squares import (
    Arrays,
    decompose,
    moments,
    sample_rows,
    solve_once,
)


def problem(count: int, *, dim: int = 6, seed: int = 0) -> tuple[Float64, Float64]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, dim)) + 2.0
    return x, x @ rng.standard_normal((dim, 4)) + 0.5 * rng.standard_normal((count, 4)) - 1.0


def slow_ridge(x: Float64, y: Float64, alpha: float) -> tuple[Float64, Float64]:
    """The penalised problem written out, with a column of ones that is not penalised."""
    wide = np.column_stack([x, np.ones(len(x))])
    penalty = np.diag([alpha] * x.shape[1] + [0.0])
    solved = np.linalg.solve(wide.T @ wide + penalty, wide.T @ y)
    return solved[:-1], solved[-1]


@pytest.mark.parametrize("count", [40, 7, 5, 3])  # more and fewer pairs than dims
@pytest.mark.parametrize("alpha", [0.01, 3.0])
def test_both_solvers_give_the_ridge_solution(count: int, alpha: float) -> None:
    x, y = problem(count)
    weight, bias = slow_ridge(x, y, alpha)
    for solution in (decompose(Arrays(x, y)).solve(alpha), solve_once(Arrays(x, y), alpha)):
        np.testing.assert_allclose(solution[0], weight, atol=1e-8)
        np.testing.assert_allclose(solution[1], bias, atol=1e-8)


@pytest.mark.parametrize("count", [30, 5])
@pytest.mark.parametrize("alpha", [0.1, 5.0])
def test_left_out_equals_fitting_again_without_the_row(count: int, alpha: float) -> None:
    x, y = problem(count)
    solution = decompose(Arrays(x, y)).left_out(x, y, alpha)
    for row in range(count):
        rest = np.arange(count) != row
        weight, bias = slow_ridge(x[rest], y[rest], alpha)
        np.testing.assert_allclose(solution[row], x[row] @ weight + bias, atol=1e-8)


def test_moments_in_blocks_are_the_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = problem(50)
    monkeypatch.setattr("midspan.bridges.least_squares.BLOCK", 7)
    m = moments(Arrays(x, y))
    xc, yc = x - x.mean(axis=0), y - y.mean(axis=0)
    np.testing.assert_allclose(m.gram, xc.T @ xc, atol=1e-9)
    np.testing.assert_allclose(m.cross, xc.T @ yc, atol=1e-9)
    raw = moments(Arrays(x, y), centred=False)
    np.testing.assert_allclose(raw.gram, x.T @ x, atol=1e-9)
    assert not raw.mean_x.any()


def test_without_noise_a_tiny_penalty_wins_and_with_noise_a_larger_one() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 20))
    true = rng.standard_normal((20, 20))
    exact = Arrays(x, x @ true)
    spectrum = decompose(exact)
    assert spectrum.choose_alpha(x, exact.y(), metric="l2").alpha < 1e-7 * spectrum.unit_alpha
    noisy = x @ true + 8.0 * rng.standard_normal((60, 20))
    spectrum = decompose(Arrays(x, noisy))
    assert spectrum.choose_alpha(x, noisy, metric="l2").alpha > 0.01 * spectrum.unit_alpha


def test_constant_dims_and_duplicates_leave_the_rest_solvable() -> None:
    x, y = problem(30)
    x[:, 2] = 1.0
    x[:, 4] = x[:, 0]
    weight, bias = decompose(Arrays(x, y)).solve(0.0)
    expected = np.linalg.lstsq(np.column_stack([x, np.ones(30)]), y, rcond=None)[0]
    np.testing.assert_allclose(
        x @ weight + bias, np.column_stack([x, np.ones(30)]) @ expected, atol=1e-8
    )


def test_sampled_rows_are_distinct_and_repeatable() -> None:
    assert sample_rows(5, 0).tolist() == [0, 1, 2, 3, 4]
    rows = sample_rows(1000, 3, size=50)
    assert len(set(rows.tolist())) == 50
    assert rows.tolist() == sample_rows(1000, 3, size=50).tolist()


@pytest.mark.parametrize("count", [30, 200])
def test_left_out_errors_equal_those_of_the_left_out_rows(count: int) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((count, 50)), rng.standard_normal((count, 80))
    spectrum = decompose(Arrays(x, y))
    alphas = [1e-3, 0.1, 5.0]
    expected = [float(np.sum((y - spectrum.left_out(x, y, one)) ** 2)) for one in alphas]
    np.testing.assert_allclose(spectrum.left_out_errors(x, y, alphas), expected, rtol=1e-7)
