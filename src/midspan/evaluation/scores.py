"""From vectors to scores: the checks and units that search and ranking share.

A score is a float32 and larger is better, whatever the metric:

    cosine   cosine similarity
    dot      inner product
    l2       minus the squared Euclidean distance

All three become one matrix product of prepared vectors. For l2 both sides are first shifted by the
mean of the queries (distances do not change, cancellation does), then the queries get a coordinate
1 and the gallery −‖g‖²/2, so that q'·g' ranks like −‖q−g‖².
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError, VectorError
from midspan.spaces import FloatArray, Metric

FloatArray64 = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

LARGEST = 1e18  # vectors longer than this overflow a float32 product
UNIT = 5e-7  # squared lengths this near to 1 are 1 as far as float32 can tell
SMALL = 1e-30  # squared lengths below this have lost digits in float32


def check_metric(metric: str) -> None:
    if metric not in get_args(Metric):
        raise EvaluationError(f"metric {metric!r} is not known; use one of {get_args(Metric)}")


def as_matrix(vectors: Any, *, what: str) -> npt.NDArray[Any]:
    """Any array-like of numbers as (N, D), not yet converted."""
    matrix: npt.NDArray[Any] = np.asanyarray(vectors)  # keeps a memory map what it is
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu" or matrix.shape[1] == 0:
        raise VectorError(
            f"{what}: expected numbers of shape (N, D), got {matrix.dtype}{matrix.shape}"
        )
    return matrix


def as_float32(vectors: npt.NDArray[Any]) -> FloatArray:
    with np.errstate(over="ignore"):  # beyond float32 it is infinite, which `prepare` reports
        return np.ascontiguousarray(vectors, dtype=np.float32)


def middle(vectors: npt.NDArray[Any], *, metric: Metric) -> FloatArray | None:
    """The point that l2 measures from, near the vectors; other metrics need none."""
    if metric != "l2":
        return None
    if len(vectors) == 0:
        return np.zeros(vectors.shape[1], dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        mean: FloatArray64 = np.mean(vectors, axis=0, dtype=np.float64)
        return mean.astype(np.float32)


def prepared_dim(dim: int, *, metric: Metric) -> int:
    return dim + 1 if metric == "l2" else dim


def prepare(
    vectors: npt.NDArray[Any],
    *,
    metric: Metric,
    what: str,
    side: str,
    centre: FloatArray | None = None,
    first_row: int = 0,
    out: FloatArray | None = None,
) -> FloatArray:
    """Checked float32 vectors whose inner products are the scores.

    They stand in `out` or a new array; vectors that need no change are returned as they are.
    side is 'query' or 'gallery' and matters for l2 only, which also needs the centre.
    """
    block = as_float32(vectors)
    if metric != "l2":
        squared = _checked_squares(block, what=what, first_row=first_row)
        if metric == "dot" or (np.abs(squared - 1) <= UNIT).all():
            return block
    if out is None:
        width = prepared_dim(block.shape[1], metric=metric)
        out = np.empty((len(block), width), dtype=np.float32)
    if metric == "l2":
        assert centre is not None
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(block, centre, out=out[:, :-1])
        squared = _checked_squares(out[:, :-1], what=what, first_row=first_row)
        out[:, -1] = 1.0 if side == "query" else squared * np.float32(-0.5)
        return out
    lengths = np.where(np.abs(squared - 1) <= UNIT, np.float32(1), np.sqrt(squared))
    small = np.flatnonzero(squared < SMALL)  # squares of small numbers vanish in float32
    lengths[small] = 1.0
    np.divide(block, lengths[:, None], out=out)
    if len(small):
        exact = np.linalg.norm(block[small].astype(np.float64), axis=1)
        if (exact == 0).any():
            raise VectorError(
                f"{what} row {first_row + int(small[exact == 0][0])} has length zero, which has no "
                "direction; remove such rows, or use metric='dot' or 'l2'"
            )
        out[small] = block[small] / exact[:, None]
    return out


def _checked_squares(block: FloatArray, *, what: str, first_row: int) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        squared: FloatArray = np.einsum("nd,nd->n", block, block)
    fine = squared < LARGEST**2
    if not fine.all():
        wrong = np.flatnonzero(~fine)
        finite = np.isfinite(block[wrong[0]]).all()
        fault = f"a length beyond {LARGEST:g}; scale it" if finite else "NaN or infinite values"
        raise VectorError(
            f"{what} row {first_row + int(wrong[0])} has {fault}; {len(wrong)} such rows in "
            "this block; repair or remove them"
        )
    return squared
