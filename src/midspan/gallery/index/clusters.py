"""k-means with NumPy's matrix product, which is several times faster here than faiss's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from midspan.spaces import FloatArray, IntArray, Metric

BLOCK = 4096  # vectors assigned at once


def assign(vectors: FloatArray, centres: FloatArray, *, metric: Metric) -> IntArray:
    """The nearest centre of each vector, in the sense that the index searches by."""
    out = np.empty(len(vectors), dtype=np.int64)
    offset = 0.0 if metric != "l2" else 0.5 * np.einsum("cd,cd->c", centres, centres)
    for start in range(0, len(vectors), BLOCK):
        scores = vectors[start : start + BLOCK] @ centres.T  # (n, C)
        scores -= offset
        out[start : start + BLOCK] = scores.argmax(axis=1)
    return out


def k_means(
    sample: FloatArray,
    count: int,
    *,
    metric: Metric,
    rounds: int,
    rng: np.random.Generator,
    breathe: Callable[[], None],
) -> FloatArray:
    """(count, D) centres; of unit length for cosine. Empty ones restart at a random vector.

    `breathe` is called every now and then: it may do other work, or raise to end this one.
    """
    centres = sample[rng.choice(len(sample), count, replace=False)].copy()
    for _ in range(rounds):
        nearest = np.empty(len(sample), dtype=np.int64)
        for start in range(0, len(sample), 8 * BLOCK):
            breathe()
            part = slice(start, start + 8 * BLOCK)
            nearest[part] = assign(sample[part], centres, metric=metric)
        order = np.argsort(nearest, kind="stable")
        found, first, sizes = np.unique(nearest[order], return_index=True, return_counts=True)
        sums = np.add.reduceat(sample[order], first, axis=0)
        centres[found] = sums / sizes[:, None]
        empty = np.setdiff1d(np.arange(count), found)
        centres[empty] = sample[rng.integers(0, len(sample), len(empty))]
        if metric == "cosine":
            centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
    return centres
