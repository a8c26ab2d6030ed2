"""A prefix and the whole in one mixed gallery: cosines as they are meant."""

from __future__ import annotations

import numpy as np

from midspan.spaces import Embeddings, FloatArray, Space
from midspan.training.bench.measure import by_prefix


def test_bench_prefix_compares_old_rows_by_prefix_and_new_by_all_dims() -> None:
    rng = np.random.default_rng(0)
    ids = np.array([f"i{n}" for n in range(6)])
    old = Embeddings(ids, rng.normal(size=(6, 3)).astype(np.float32), Space("old", 3))
    space = Space("new", 5, compatible_with=(old.space.fingerprint,), compatible_dims=3)
    new = Embeddings(ids, rng.normal(size=(6, 5)).astype(np.float32), space)
    dims = new.space.prefix_for(old.space)
    assert dims == 3
    query, stored, refreshed = by_prefix(new, old, dims=dims)
    assert query.space.same_as(stored.space)

    def unit(rows: FloatArray) -> FloatArray:
        units: FloatArray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return units

    by_old = unit(new.vectors[:, :3]) @ unit(old.vectors).T
    np.testing.assert_allclose(query.vectors @ stored.vectors.T, by_old, atol=1e-6)
    by_new = unit(new.vectors) @ unit(new.vectors).T
    np.testing.assert_allclose(query.vectors @ refreshed.vectors.T, by_new, atol=1e-6)
