"""Mutual likelihood: how likely two uncertain vectors show the same thing. A re-scorer.

The score is no metric and no inner product, so no index can search by it: search by cosine first,
then `rescore` the first k.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import VectorError
from midspan.spaces import Embeddings, IntArray

Floats = npt.NDArray[np.floating[Any]]
FloatArray64 = npt.NDArray[np.float64]

VARIANCE = "variance"  # column (N, K) of embeddings


def mutual_likelihood(
    first: Floats, first_variance: Floats, second: Floats, second_variance: Floats
) -> FloatArray64:
    """Score of each pair of rows: (…, D), (…, K) on both sides → (…).

    −½ Σ_k ‖f_1k − f_2k‖² / (σ²_1k + σ²_2k) − (D/2K) Σ_k log(σ²_1k + σ²_2k)

    URL (CVPR 2020) for K slices; with σ² repeated inside of each slice it is the score of PFE
    (arXiv:1904.09658), whose constant −(D/2) log 2π is left out. Leading axes broadcast.
    """
    dim, slices = first.shape[-1], first_variance.shape[-1]
    fits = second.shape[-1] == dim and second_variance.shape[-1] == slices
    if not fits or slices < 1 or dim % slices:
        raise VectorError(
            "expected one dim D on both sides and one K that divides it, got vectors "
            f"{first.shape} and {second.shape} with variances {first_variance.shape} and "
            f"{second_variance.shape}"
        )
    spread = np.asarray(first_variance, dtype=np.float64) + second_variance  # (…, K)
    if not (spread > 0).all():  # NaN fails too
        raise VectorError("variances must be above 0")
    apart = np.square(np.asarray(first, dtype=np.float64) - second)
    apart = apart.reshape(*apart.shape[:-1], slices, dim // slices).sum(axis=-1)  # (…, K)
    near = -0.5 * (apart / spread).sum(axis=-1)
    score: FloatArray64 = near - 0.5 * (dim // slices) * np.log(spread).sum(axis=-1)
    return score


def rescore(
    query: Embeddings, gallery: Embeddings, rows: IntArray
) -> tuple[IntArray, FloatArray64]:
    """The rows (Q, k) of a search in the order of mutual likelihood, and their scores (Q, k).

    Both sides need the column 'variance' (N, K). A row of −1 stands for nothing found and stays at
    the end, with the score −inf.
    """
    ours, theirs = _variance(query, "query"), _variance(gallery, "gallery")
    if rows.ndim != 2 or len(rows) != len(query):
        raise VectorError(f"expected rows (Q, k) for {len(query)} queries, got {rows.shape}")
    if rows.size and rows.max() >= len(gallery):
        raise VectorError(f"rows reach to {rows.max()} of {len(gallery)} gallery vectors")
    scores = np.empty(rows.shape)
    block = max(1, 2**22 // max(1, rows.shape[1] * query.space.dim))  # 32 MiB of float64
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        candidates = rows[part]
        scores[part] = mutual_likelihood(
            query.vectors[part, None],
            ours[part, None],
            gallery.vectors[candidates],
            theirs[candidates],
        )
    scores[rows < 0] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _variance(embeddings: Embeddings, side: str) -> Floats:
    column = embeddings.columns.get(VARIANCE)
    if column is None or column.ndim != 2:
        raise VectorError(
            f"the {side} has no column {VARIANCE!r} (N, K); embed it with its uncertainty head "
            "(midspan.encoders.uncertainty.embed_judged)"
        )
    return column
