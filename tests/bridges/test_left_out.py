"""What a fit on all pairs says of a fold equals the fit without that fold."""

from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import Kernel, Ridge
from midspan.bridges.base import Bridge, Fold, Pairs
from midspan.bridges.blend import Blend
from midspan.bridges.compare import Trial
from midspan.bridges.least_squares import shared_choice
from midspan.bridges.local import Local
from midspan.bridges.low_rank import LowRank
from midspan.spaces import Embeddings, Metric, Space


def pairs(count: int, *, dims: int = 24, metric: Metric = "cosine", classes: int = 0) -> Pairs:
    rng = np.random.default_rng(3)
    old = rng.normal(size=(count, dims)) + rng.normal(size=dims)
    new = np.tanh(old @ rng.normal(size=(dims, dims + 5)) / 4) + 0.1 * rng.normal(
        size=(count, dims + 5)
    )
    ids = np.arange(count).astype(np.str_)
    columns = {"labels": (np.arange(count) % classes).astype(np.str_)} if classes else {}
    return Pairs.of(
        Embeddings(ids, old.astype(np.float32), Space("old", dims, metric), columns),
        Embeddings(ids, new.astype(np.float32), Space("new", dims + 5, metric), columns),
    )


def refitted(bridge: Bridge, fold: Fold) -> np.ndarray:
    return bridge.fit_pairs(fold.kept).transform(fold.pairs.source[fold.rows]).vectors


@pytest.mark.parametrize("metric", ["cosine", "l2"])
@pytest.mark.parametrize("count", [18, 200])  # fewer pairs than dims, and more
@pytest.mark.parametrize("alpha", [1e-3, 0.5, 30.0])
def test_ridge_without_a_fold_is_the_fit_of_the_others(
    count: int, alpha: float, metric: Metric
) -> None:
    given = pairs(count, metric=metric)
    left_out = np.arange(0, count, 3)
    fold = Fold(given, left_out, left_out[1::2])
    got = Ridge(alpha=alpha).map_left_out(fold)
    np.testing.assert_allclose(got, refitted(Ridge(alpha=alpha), fold), atol=2e-5, rtol=0)


def test_ridge_takes_the_penalty_of_all_pairs() -> None:
    given = pairs(200)
    fold = Fold(given, np.arange(50), np.arange(10))
    chosen = Ridge(alpha=shared_choice(given, seed=0).alpha)
    np.testing.assert_allclose(
        Ridge().map_left_out(fold), refitted(chosen, fold), atol=2e-5, rtol=0
    )


def test_ridge_without_a_penalty_is_fitted_again() -> None:
    given = pairs(200)
    fold = Fold(given, np.arange(50), np.arange(10))
    np.testing.assert_array_equal(Ridge(alpha=0).map_left_out(fold), refitted(Ridge(alpha=0), fold))


def test_kernel_without_a_fold_is_the_ridge_on_its_features_without_them() -> None:
    """By plain least squares in the features of all pairs; width and shift are theirs."""
    given = pairs(150)
    left_out = np.arange(0, 150, 4)
    bridge = Kernel(alpha=0.2, power=1.0)
    solved = bridge._chosen(given)
    z = np.asarray(solved.features.x(), dtype=np.float64)  # (N, r)
    y = given.y()
    kept = np.setdiff1d(np.arange(150), left_out)
    mean_z, mean_y = z[kept].mean(axis=0), y[kept].mean(axis=0)
    centred = z[kept] - mean_z
    gram = centred.T @ centred + 0.2 * np.eye(z.shape[1])
    weight = np.linalg.solve(gram, centred.T @ (y[kept] - mean_y))
    expected = (z[left_out] - mean_z) @ weight + mean_y
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    got = bridge.map_left_out(Fold(given, left_out, left_out))
    np.testing.assert_allclose(got, expected, atol=1e-4, rtol=0)


def test_kernel_without_a_fold_is_near_the_fit_of_the_others() -> None:
    given = pairs(400)
    fold = Fold(given, np.arange(0, 400, 3), np.arange(0, 400, 3))
    bridge = Kernel(alpha=0.2, power=1.0)
    got, again = bridge.map_left_out(fold), refitted(Kernel(alpha=0.2, power=1.0), fold)
    assert np.einsum("nd,nd->n", got, again).min() > 0.999


@pytest.mark.parametrize("made", [Local(clusters=2), LowRank(rank=4)])
def test_bridges_on_top_of_ridge_take_its_penalty(made: Local | LowRank) -> None:
    given = pairs(200)
    fold = Fold(given, np.arange(60), np.arange(60))
    alpha = shared_choice(given, seed=0).alpha
    settings = {**made.settings(), "alpha": alpha}
    expected = refitted(type(made)(**settings), fold)
    np.testing.assert_array_equal(made.map_left_out(fold), expected)


def test_a_blend_is_the_mean_of_its_members_without_the_fold() -> None:
    given = pairs(200)
    fold = Fold(given, np.arange(60), np.arange(20))
    members = ({"name": "ridge", "alpha": 0.1}, {"name": "procrustes"})
    got = Blend(members=members).map_left_out(fold)
    np.testing.assert_allclose(got, refitted(Blend(members=members), fold), atol=2e-5, rtol=0)


def test_a_trial_never_lets_a_fit_see_the_class_that_it_maps() -> None:
    """Targets of a held-out class may be anything: what is mapped there does not change."""
    given = pairs(120, classes=12)
    trial = Trial(given, folds=3, seed=0)
    first = trial.rows[trial.parts[0]]
    spoilt = given.target.vectors.copy()
    hidden = trial.excluded(trial.parts[0])
    spoilt[hidden] = np.random.default_rng(1).normal(size=spoilt[hidden].shape)
    target = Embeddings(given.target.ids, spoilt, given.target.space, given.target.columns)
    fold = Fold(given, hidden, first)
    other = Fold(Pairs.of(given.source, target), hidden, first)
    for bridge in (Ridge(alpha=0.1), Kernel(alpha=0.2, power=1.0)):
        np.testing.assert_allclose(
            bridge.clone().map_left_out(fold), bridge.map_left_out(other), atol=1e-4, rtol=0
        )
