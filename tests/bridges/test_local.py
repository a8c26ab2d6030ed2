from __future__ import annotations

import numpy as np

from midspan.bridges import Local, Ridge
from midspan.bridges.local import k_means
from tests.bridges.worlds import embeddings, encoders


def test_k_means_finds_blobs_that_are_far_apart() -> None:
    rng = np.random.default_rng(0)
    truth = np.arange(90) % 3
    x = 10.0 * np.eye(3)[truth] + 0.1 * rng.standard_normal((90, 3))
    centres, nearest = k_means(x, 3, seed=0)
    assert len({tuple(truth[nearest == k].tolist()) for k in range(3)}) == 3
    for k in range(3):
        assert len(set(truth[nearest == k].tolist())) == 1
        np.testing.assert_allclose(centres[k], x[nearest == k].mean(axis=0))


def test_k_means_takes_no_more_centres_than_there_are_different_rows() -> None:
    centres, _ = k_means(np.repeat(np.eye(2), 5, axis=0), 4, seed=0)
    assert len(centres) == 2


def test_a_map_that_differs_by_region_is_learnt() -> None:
    rng = np.random.default_rng(0)
    region = np.arange(600) % 3
    vectors = 4.0 * np.eye(6)[region] + rng.standard_normal((600, 6))
    maps = rng.standard_normal((3, 6, 6))
    target = np.einsum("nd,nde->ne", vectors, maps[region])
    old = embeddings(vectors, "old", metric="l2")
    new = embeddings(target, "new", metric="l2")

    def error(bridge: Local | Ridge) -> float:
        mapped = bridge.fit(old[:450], new[:450]).apply(old.vectors[450:])
        return float(np.mean((mapped - new.vectors[450:]) ** 2))

    assert error(Local(clusters=3)) < 0.5 * error(Ridge())


def test_where_one_map_is_the_truth_it_is_ridge() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((60, 20))
    target = vectors @ rng.standard_normal((20, 20)) + 4.0 * rng.standard_normal((60, 20))
    old = embeddings(vectors, "old", metric="l2")
    new = embeddings(target, "new", metric="l2")
    local = Local(clusters=4).fit(old, new).apply(old.vectors)
    ridge = Ridge().fit(old, new).apply(old.vectors)
    assert np.mean((local - ridge) ** 2) < 0.05 * np.mean(ridge**2)


def test_shares_add_up_to_one() -> None:
    old, new = encoders(100)
    shares = Local(clusters=5).fit(old, new)._shares(old.vectors)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-6)
