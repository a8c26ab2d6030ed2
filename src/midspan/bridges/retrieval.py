"""Held-out retrieval, as small as choosing between bridges needs it.

New queries search the mapped gallery. Without labels only the own item of a true target vector is
relevant (reciprocal rank); with labels the other items of its class are (average precision).

`times` asks for a larger gallery than there is: each item that is not relevant counts so many
times. Where one wrong item stands above a right one here, `times` of them are expected to in a
gallery with so many more items of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.average_precision import average_precision, hit_ranks
from midspan.bridges.base import Float64
from midspan.labels import codes
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


def reciprocal_ranks(
    queries: Vectors, gallery: Vectors, metric: Metric, *, times: Float64 | float = 1.0
) -> Float64:
    """(N,) 1 / rank of each query's own row; ties count half, so a constant map earns nothing."""
    counted = np.broadcast_to(times, len(queries))
    result = np.empty(len(queries))
    for rows, block in score_blocks(queries, gallery, metric):
        own = block[np.arange(len(block)), np.arange(rows.start, rows.stop)][:, None]
        better = (block > own).sum(axis=1)
        tied = (block == own).sum(axis=1) - 1
        result[rows] = 1.0 / (1.0 + counted[rows] * (better + tied / 2))
    return result


def average_precisions(
    queries: Vectors,
    gallery: Vectors,
    labels: npt.NDArray[Any],
    metric: Metric,
    *,
    times: Float64 | float = 1.0,
) -> Float64:
    """(N,) AP by class, each query's own row left out; NaN where a class has no other item."""
    result = np.empty(len(queries))
    if labels.dtype.kind == "U":  # text once, not in each block
        (labels,) = codes(labels)
    counted = np.broadcast_to(times, len(queries))
    for rows, block in score_blocks(queries, gallery, metric):
        own = np.arange(rows.start, rows.stop)
        block[np.arange(len(block)), own] = -np.inf  # sorts last, then cut off
        order = np.argsort(-block, axis=1, kind="stable")[:, :-1]
        ranks, n = hit_ranks(labels[order] == labels[rows][:, None])
        result[rows] = average_precision(ranks, n, times=counted[rows])
    return result
