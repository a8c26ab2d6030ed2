"""One score for one pair of vectors, bit for bit the same whatever engine found the candidate.

Engines round differently. So they only find candidates; their scores are then computed here, in
float64 from float32 vectors, and rounded once. Equal scores stand in the order of the ids.
"""

from __future__ import annotations

import numpy as np

from midspan.spaces import FloatArray, Metric


def prepare(vectors: FloatArray, *, metric: Metric) -> FloatArray:
    """(N, D) as they are compared: of unit length for cosine, as they are otherwise."""
    if metric != "cosine":
        return np.ascontiguousarray(vectors, dtype=np.float32)
    wide = vectors.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    units: FloatArray = (wide / lengths).astype(np.float32)
    return units


def pair_scores(query: FloatArray, rows: FloatArray, *, metric: Metric) -> FloatArray:
    """(N,) scores of one prepared query (D,) with prepared rows (N, D); or of (Q, 1, D), (Q, N, D).

    Sums run over the last axis, which is contiguous: in the same order whatever stands before it.
    """
    wide = rows.astype(np.float64)
    if metric == "l2":
        wide -= query
        scores = -np.add.reduce(wide * wide, axis=-1)
    else:
        wide *= query  # in float64, which holds each product of float32 exactly
        scores = np.add.reduce(wide, axis=-1)
    rounded: FloatArray = scores.astype(np.float32)
    return rounded
