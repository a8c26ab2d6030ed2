"""Ridge regression, decomposed once so that every penalty after it costs little.

With centred X (N, Ds), Y (N, Dt) and XᵀX = V diag(λ) Vᵀ the ridge weights are
V diag(1/(λ+α)) VᵀXᵀY, and the prediction of a fit row by the fit *without* that row is
y - (y - ŷ)/(1 - h), h its leverage: leave-one-out for every α from one eigendecomposition.
With fewer pairs than dims the decomposition is that of XXᵀ (N, N) instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from midspan.bridges.base import TINY, Float64, Pairs, unit
from midspan.bridges.retrieval import reciprocal_ranks
from midspan.spaces import FloatArray, IntArray, Metric

BLOCK = 1024  # rows in float64 at a time: stays near the caches
SAMPLE = 512  # left-out rows that judge an α; more change the choice little

# Relative to the mean eigenvalue. Ours: 1e-10 is least squares in float64, 30 leaves the mean.
ALPHAS = tuple(10.0**power for power in (-10, -8, -6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5))


class Rows(Protocol):
    """Pairs, read by rows; sources in float32 are multiplied in it, block by block."""

    def __len__(self) -> int: ...
    def x(self, rows: slice | IntArray = ..., /) -> Float64 | FloatArray: ...
    def y(self, rows: slice | IntArray = ..., /) -> Float64: ...


@dataclass(frozen=True, slots=True)
class Arrays:
    """`Rows` that are in memory already."""

    inputs: Float64
    outputs: Float64

    def __len__(self) -> int:
        return len(self.inputs)

    def x(self, rows: slice | IntArray = slice(None)) -> Float64:
        return self.inputs[rows]

    def y(self, rows: slice | IntArray = slice(None)) -> Float64:
        return self.outputs[rows]


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over all pairs, about the means: all that a linear fit needs to know."""

    count: int
    mean_x: Float64  # (Ds,)
    mean_y: Float64  # (Dt,)
    gram: Float64  # (Ds, Ds) XᵀX
    cross: Float64  # (Ds, Dt) XᵀY


def moments(rows: Rows, *, centred: bool = True) -> Moments:
    """One pass in blocks, so that 100,000 pairs need no float64 copy."""
    first_x, first_y = rows.x(slice(0, 1)), rows.y(slice(0, 1))
    gram = np.zeros((first_x.shape[1], first_x.shape[1]))
    cross = np.zeros((first_x.shape[1], first_y.shape[1]))
    sum_x, sum_y = np.zeros(first_x.shape[1]), np.zeros(first_y.shape[1])
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        x, y = rows.x(part), rows.y(part)
        ones = np.ones(len(x))
        gram += x.T @ x
        cross += x.T @ y
        sum_x += ones @ x
        sum_y += ones @ y
    count = len(rows)
    mean_x, mean_y = sum_x / count, sum_y / count
    if not centred:
        return Moments(count, 0 * mean_x, 0 * mean_y, gram, cross)
    gram -= count * np.outer(mean_x, mean_x)
    cross -= count * np.outer(mean_x, mean_y)
    return Moments(count, mean_x, mean_y, gram, cross)


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The decomposed problem. `basis` holds the directions of the sources that vary."""

    count: int
    mean_x: Float64  # (Ds,)
    mean_y: Float64  # (Dt,)
    values: Float64  # (r,) eigenvalues λ, positive
    basis: Float64  # (Ds, r)
    cross: Float64  # (r, Dt) basisᵀXᵀY

    @property
    def unit_alpha(self) -> float:
        """The mean eigenvalue: penalties are given in multiples of it."""
        return float(self.values.mean()) if len(self.values) else 1.0

    def solve(self, alpha: float) -> tuple[Float64, Float64]:
        """Weights (Ds, Dt) and bias (Dt,); the bias is not penalised."""
        weight = self.basis @ (self.cross / (self.values + alpha)[:, None])
        return weight, self.mean_y - self.mean_x @ weight

    def left_out(self, x: Float64, y: Float64, alpha: float) -> Float64:
        """(M, Dt): these fit rows, each predicted by the fit without it."""
        z = (x - self.mean_x) @ self.basis
        predicted = self.mean_y + (z / (self.values + alpha)) @ self.cross
        return y - (y - predicted) / self._shown(z, alpha)[:, None]

    def left_out_block(self, z: Float64 | FloatArray, y: Float64, alpha: float) -> Float64 | None:
        """(F, Dt): these fit rows, predicted by the fit without all of them; z: their coordinates.

        With H = 1/N + Z diag(1/(λ+α)) Zᵀ it is y - (I - H)⁻¹(y - ŷ), exact for this α.
        None where the other rows determine nothing.
        """
        from scipy.linalg import LinAlgError, cho_factor, cho_solve

        z = z.astype(np.float64)
        weighted = z / (self.values + alpha)
        rest = y - self.mean_y - weighted @ self.cross
        shown = -(weighted @ z.T) - 1.0 / self.count
        shown[np.diag_indices_from(shown)] += 1.0
        try:
            factor = cho_factor(shown, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            return None
        predicted: Float64 = y - cho_solve(factor, rest, overwrite_b=True, check_finite=False)
        return predicted if np.isfinite(predicted).all() else None

    def left_out_errors(self, x: Float64, y: Float64, alphas: Sequence[float]) -> list[float]:
        """The summed squared error of `left_out` for each α, over all fit rows."""
        z, missed = (x - self.mean_x) @ self.basis, y - self.mean_y
        cross = self.cross
        if len(x) < y.shape[1]:  # a rotation of the targets keeps all lengths: (N, N) is enough
            _, triangle = np.linalg.qr(missed.T)
            missed = triangle.T
            cross = z.T @ missed
        errors = []
        for alpha in alphas:
            rest = missed - (z / (self.values + alpha)) @ cross
            squared = np.einsum("nd,nd->n", rest, rest)
            errors.append(float(np.sum(squared / self._shown(z, alpha) ** 2)))
        return errors

    def _shown(self, z: Float64 | FloatArray, alpha: float) -> Float64:
        """(M,) 1 - leverage: how much of its own error a fit row still shows."""
        leverage = 1.0 / self.count + np.einsum("nr,nr->n", z, z / (self.values + alpha))
        shown: Float64 = np.maximum(1.0 - leverage, TINY)
        return shown

    def choose_alpha(
        self, x: Float64, y: Float64, *, metric: Metric, alphas: Sequence[float] = ALPHAS
    ) -> Choice:
        """The α whose left-out predictions are best found by their true targets."""
        return self.choose_alpha_at((x - self.mean_x) @ self.basis, y, metric=metric, alphas=alphas)

    def choose_alpha_at(
        self,
        z: Float64 | FloatArray,
        y: Float64,
        *,
        metric: Metric,
        alphas: Sequence[float] = ALPHAS,
    ) -> Choice:
        """As `choose_alpha`, by the coordinates z (M, r) of the rows in the basis.

        Products in float32: ranks need no more, and it halves the time.
        """
        small_z: FloatArray = z.astype(np.float32)
        cross: FloatArray = self.cross.astype(np.float32)
        targets: FloatArray = y.astype(np.float32)
        mean: FloatArray = self.mean_y.astype(np.float32)

        def judge(factor: float) -> Choice:
            alpha = factor * self.unit_alpha
            inverse: FloatArray = (1.0 / (self.values + alpha)).astype(np.float32)
            fitted: FloatArray = np.multiply(small_z, inverse) @ cross  # about the mean
            shown = self._shown(z, alpha).astype(np.float32)
            predicted: FloatArray = targets - (targets - mean - fitted) / shown[:, None]
            if metric == "cosine":
                predicted = unit(predicted)
            error = float(np.mean(np.sum((predicted - targets) ** 2, axis=1)))
            ranks = reciprocal_ranks(targets, predicted, metric)
            # The geometric mean: as near to mAP as the mean rank, with half of its noise.
            return Choice(alpha, float(np.exp(np.log(ranks).mean())), error)

        # Every second one, then the neighbours of the best: retrieval rises and falls once.
        every_second = {place: judge(alphas[place]) for place in range(0, len(alphas), 2)}
        top = max(every_second, key=lambda place: every_second[place].key())
        between = [place for place in (top - 1, top + 1) if 0 <= place < len(alphas)]
        best = max(every_second[top], *(judge(alphas[place]) for place in between), key=Choice.key)
        near = best.alpha / self.unit_alpha
        return max(best, judge(near / 1.8), judge(near * 1.8), key=Choice.key)


@dataclass(frozen=True, slots=True)
class Choice:
    alpha: float
    score: float  # geometric mean of the reciprocal ranks of the left-out items
    error: float  # their mean squared distance

    def key(self) -> tuple[float, float]:
        """Retrieval decides; where all find everything, the smaller error does."""
        return round(self.score, 6), -self.error


def decompose(rows: Rows) -> Spectrum:
    count, dim = len(rows), rows.x(slice(0, 1)).shape[1]
    if count >= dim:
        m = moments(rows)
        values, vectors = eigh(m.gram)
        kept = values > _smallest(values, count)
        basis = vectors[:, kept]
        return Spectrum(count, m.mean_x, m.mean_y, values[kept], basis, basis.T @ m.cross)
    x, y = rows.x(), rows.y()
    mean_x, mean_y = x.mean(axis=0), y.mean(axis=0)
    x, y = x - mean_x, y - mean_y
    values, vectors = eigh(x @ x.T)
    kept = values > _smallest(values, dim)
    values, vectors = values[kept], vectors[:, kept]
    roots = np.sqrt(values)
    basis = (x.T @ vectors) / roots
    return Spectrum(count, mean_x, mean_y, values, basis, roots[:, None] * (vectors.T @ y))


def eigh(matrix: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Ascending eigenvalues and vectors in the matrix's own precision, which is overwritten."""
    from scipy.linalg import eigh as solve

    values, vectors = solve(matrix, driver="evd", overwrite_a=True, check_finite=False)
    return values, vectors


def shared_spectrum(pairs: Pairs) -> Spectrum:
    """The decomposition that all linear bridges of these pairs start from."""
    return pairs.shared("spectrum", lambda: decompose(pairs))


def shared_choice(pairs: Pairs, *, seed: int) -> Choice:
    """The penalty that left-out retrieval chooses, once for all of them."""

    def make() -> Choice:
        rows = sample_rows(len(pairs), seed)
        spectrum, metric = shared_spectrum(pairs), pairs.target.space.metric
        return spectrum.choose_alpha(pairs.x(rows), pairs.y(rows), metric=metric)

    return pairs.shared(("choice", seed), make)


def _smallest(values: Float64, size: int) -> float:
    """Eigenvalues below are rounding: constant dims, duplicates, directions nobody saw."""
    return float(max(values[-1], 0.0)) * size * np.finfo(np.float64).eps if len(values) else 0.0


def solve_once(rows: Rows, alpha: float) -> tuple[Float64, Float64]:
    """Weights and bias for one known α > 0: a Cholesky solve of the smaller system."""
    from scipy.linalg import solve

    count, dim = len(rows), rows.x(slice(0, 1)).shape[1]
    if count >= dim:
        m = moments(rows)
        gram = m.gram
        gram[np.diag_indices_from(gram)] += alpha
        weight = solve(gram, m.cross, assume_a="pos", overwrite_a=True, check_finite=False)
        return weight, m.mean_y - m.mean_x @ weight
    x, y = rows.x(), rows.y()
    mean_x, mean_y = x.mean(axis=0), y.mean(axis=0)
    x -= mean_x
    kernel = x @ x.T
    kernel[np.diag_indices_from(kernel)] += alpha
    dual = solve(kernel, y - mean_y, assume_a="pos", overwrite_a=True, check_finite=False)
    weight = x.T @ dual
    return weight, mean_y - mean_x @ weight


def sample_rows(count: int, seed: int, size: int = SAMPLE) -> IntArray:
    if count <= size:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, size, replace=False))
