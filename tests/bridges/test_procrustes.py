from __future__ import annotations

import numpy as np
import pytest

from midspan.bridges import Procrustes
from tests.bridges.worlds import embeddings, rotation, unit64


def test_an_exact_rotation_is_recovered() -> None:
    vectors = np.random.default_rng(0).standard_normal((200, 16))
    turn = rotation(16)
    bridge = Procrustes().fit(embeddings(vectors, "old"), embeddings(vectors @ turn, "new"))
    np.testing.assert_allclose(bridge.weight_, turn, atol=1e-6)


def test_an_exact_similarity_is_recovered_with_scale_and_centre() -> None:
    vectors = np.random.default_rng(0).standard_normal((200, 16)) + 1.0
    moved = 2.5 * vectors @ rotation(16) + np.arange(16) / 4
    old = embeddings(vectors, "old", metric="l2")
    bridge = Procrustes(scale=True, center=True).fit(old, embeddings(moved, "new", metric="l2"))
    assert bridge.scale_ == pytest.approx(2.5, abs=1e-6)
    np.testing.assert_allclose(bridge.apply(old.vectors), moved, atol=2e-5)


def test_rankings_are_unchanged_exactly() -> None:
    rng = np.random.default_rng(1)
    old = embeddings(rng.standard_normal((150, 12)), "old")
    new = embeddings(rng.standard_normal((150, 12)), "new")  # any target: it stays a rotation
    mapped = Procrustes().fit(old, new).transform(old).vectors
    before, after = unit64(old.vectors), mapped.astype(np.float64)
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-6)
    ranked = [np.argsort(-(rows @ rows.T), axis=1) for rows in (before, after)]
    assert np.array_equal(ranked[0], ranked[1])


def test_into_more_dims_it_is_an_isometry() -> None:
    rng = np.random.default_rng(1)
    old = embeddings(rng.standard_normal((60, 8)), "old")
    bridge = Procrustes().fit(old, embeddings(rng.standard_normal((60, 13)), "new"))
    np.testing.assert_allclose(bridge.weight_ @ bridge.weight_.T, np.eye(8), atol=1e-6)


@pytest.mark.parametrize(("source_dim", "target_dim"), [(8, 13), (13, 8)])
def test_unequal_dims_are_zero_padding(source_dim: int, target_dim: int) -> None:
    rng = np.random.default_rng(2)
    old = embeddings(rng.standard_normal((60, source_dim)), "old")
    new = embeddings(rng.standard_normal((60, target_dim)), "new")
    x, y = np.zeros((60, 13)), np.zeros((60, 13))
    x[:, :source_dim], y[:, :target_dim] = unit64(old.vectors), unit64(new.vectors)
    u, _, vt = np.linalg.svd(x.T @ y)
    expected = (x @ u @ vt)[:, :target_dim]
    mapped = Procrustes().fit(old, new).unnormalised(old.vectors)
    np.testing.assert_allclose(mapped, expected, atol=1e-5)


def test_few_pairs_turn_only_what_they_span() -> None:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((10, 30))
    turn = rotation(30)
    old, new = embeddings(vectors, "old"), embeddings(vectors @ turn, "new")
    bridge = Procrustes(few_pairs=True).fit(old, new)
    np.testing.assert_allclose(bridge.apply(old.vectors), unit64(new.vectors), atol=1e-5)
    assert np.linalg.matrix_rank(bridge.weight_, tol=1e-4) == 10
    beyond = rng.standard_normal(30)
    beyond -= np.linalg.lstsq(vectors.T, beyond, rcond=None)[0] @ vectors
    assert np.linalg.norm(beyond @ bridge.weight_) < 1e-4 * np.linalg.norm(beyond)
