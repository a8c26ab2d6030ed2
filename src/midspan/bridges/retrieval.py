"""Held-out retrieval, as small as choosing between bridges needs it.

New queries search the mapped gallery. Without labels each true target vector wants its own item
first (reciprocal rank); with labels it wants the other items of its class (average precision).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.bridges.base import Float64
from midspan.spaces import Metric

BLOCK = 1024  # queries at a time

Vectors = npt.NDArray[Any]  # float32 or float64


def scores(queries: Vectors, gallery: Vectors, metric: Metric) -> Vectors:
    """(Q, G), higher is nearer; cosine expects unit rows."""
    products: Vectors = queries @ gallery.T
    if metric == "l2":  # -distance², up to a constant of the query
        products = 2 * products - np.einsum("nd,nd->n", gallery, gallery)
    return products


def score_blocks(
    queries: Vectors, gallery: Vectors, metric: Metric
) -> Iterator[tuple[slice, Vectors]]:
    for start in range(0, len(queries), BLOCK):
        rows = slice(start, min(start + BLOCK, len(queries)))
        yield rows, scores(queries[rows], gallery, metric)


def reciprocal_ranks(queries: Vectors, gallery: Vectors, metric: Metric) -> Float64:
    """(N,) 1 / rank of each query's own row; ties count half, so a constant map earns nothing."""
    found = np.empty(len(queries))
    for rows, block in score_blocks(queries, gallery, metric):
        own = block[np.arange(len(block)), np.arange(rows.start, rows.stop)][:, None]
        better = (block > own).sum(axis=1)
        tied = (block == own).sum(axis=1) - 1
        found[rows] = 1.0 / (1.0 + better + tied / 2)
    return found


def average_precisions(
    queries: Vectors, gallery: Vectors, labels: npt.NDArray[Any], metric: Metric
) -> Float64:
    """(N,) AP by class, each query's own row left out; NaN where a class has no other item."""
    found = np.full(len(queries), np.nan)
    places = np.arange(1, len(gallery))
    for rows, block in score_blocks(queries, gallery, metric):
        own = np.arange(rows.start, rows.stop)
        block[np.arange(len(block)), own] = -np.inf  # sorts last, then cut off
        order = np.argsort(-block, axis=1, kind="stable")[:, :-1]
        right = labels[order] == labels[rows][:, None]
        total = right.sum(axis=1)
        precision = np.cumsum(right, axis=1) / places
        some = total > 0
        found[rows][some] = (precision * right).sum(axis=1)[some] / total[some]
    return found
