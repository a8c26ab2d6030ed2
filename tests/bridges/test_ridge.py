from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import Ridge
from midspan.bridges.retrieval import reciprocal_ranks
from tests.bridges.worlds import embeddings, encoders, rotation, unit64


@pytest.mark.parametrize(("source_dim", "target_dim"), [(10, 10), (10, 16), (16, 10)])
def test_an_exact_affine_map_is_recovered(source_dim: int, target_dim: int) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((300, source_dim)).astype(np.float32)
    weight = rng.standard_normal((source_dim, target_dim)) / 4
    bias = rng.standard_normal(target_dim)
    old = embeddings(vectors, "old", metric="l2")
    new = embeddings(vectors @ weight + bias, "new", metric="l2")
    bridge = Ridge().fit(old, new)
    np.testing.assert_allclose(bridge.weight_, weight, atol=1e-6)
    np.testing.assert_allclose(bridge.bias_, bias, atol=1e-6)


def test_an_exact_rotation_is_recovered() -> None:
    vectors = np.random.default_rng(0).standard_normal((200, 16))
    old, new = embeddings(vectors, "old"), embeddings(vectors @ rotation(16), "new")
    bridge = Ridge().fit(old[:150], new[:150])
    np.testing.assert_allclose(bridge.apply(old.vectors), unit64(new.vectors), atol=1e-6)


def test_the_same_solution_as_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    old, new = encoders(100, source_dim=20, target_dim=15)
    for count in (100, 12):  # primal and dual
        bridge = Ridge(alpha=0.7).fit(old[:count], new[:count])
        x, y = unit64(old.vectors[:count]), unit64(new.vectors[:count])
        peer = linear_model.Ridge(alpha=0.7).fit(x, y)
        np.testing.assert_allclose(bridge.weight_, peer.coef_.T, atol=1e-6)
        np.testing.assert_allclose(bridge.bias_, peer.intercept_, atol=1e-6)


def test_a_known_penalty_gives_what_the_decomposition_gives() -> None:
    old, new = encoders(60)
    chosen = Ridge().fit(old, new)
    again = Ridge(alpha=chosen.alpha_).fit(old, new)
    np.testing.assert_allclose(again.weight_, chosen.weight_, atol=1e-5)


def test_the_bias_is_not_penalised() -> None:
    rng = np.random.default_rng(0)
    old = embeddings(rng.standard_normal((50, 4)), "old", metric="l2")
    new = embeddings(rng.standard_normal((50, 3)) + 100.0, "new", metric="l2")
    mapped = Ridge(alpha=1e9).fit(old, new).apply(old.vectors)
    np.testing.assert_allclose(mapped, np.tile(new.vectors.mean(axis=0), (50, 1)), rtol=1e-5)


def test_the_chosen_penalty_retrieves_better_than_none_and_than_too_much() -> None:
    old, new = encoders(240, source_dim=60, target_dim=60, noise=0.3)
    queries = unit64(new.vectors[80:])

    def score(bridge: Ridge) -> float:
        mapped = bridge.fit(old[:80], new[:80]).apply(old.vectors[80:])
        return float(reciprocal_ranks(queries, mapped, "cosine").mean())

    chosen = Ridge()
    best = score(chosen)
    assert best > score(Ridge(alpha=1e-7)) + 0.01
    assert best > score(Ridge(alpha=1e3)) + 0.01
    assert chosen.left_out_score_ is not None
    assert 0 < chosen.left_out_score_ <= 1
