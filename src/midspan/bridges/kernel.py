"""Kernel ridge regression: a smooth non-linear map that is still solved, not trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from midspan.bridges.base import TINY, Bridge, Float64, Fold, Pairs, unit
from midspan.bridges.least_squares import ALPHAS, Choice, Spectrum, eigh, moments, sample_rows
from midspan.spaces import FloatArray, IntArray

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph

POWER_SAMPLE = 768  # pairs that choose the power: its solves cost their number cubed
ROUNDING = 1e-6  # of the largest eigenvalue, in float32
POWERS = (1.0, 0.5)  # as they are, or the signed root, which tames bursts in features after a ReLU


class Kernel(Bridge):
    """y = b + Σ_j k(x, z_j) a_j with k(x, z) = exp(-‖x̃ - z̃‖²/(2·width·s²)).

    x̃ = sign(x)|x|^power, normalised again in a cosine space; s² is the mean squared distance
    between landmarks. `power=None` chooses 1 or ½ and `alpha=None` the penalty, both by left-out
    retrieval as in `Ridge`. The landmarks z are fit items; beyond `landmarks` of them a random
    part carries the map (Nyström) while all pairs fit it. Defaults are ours, from
    cross-validation on the fit classes of benchmarks/bridges.py.

    Args:
        width: Of the kernel, as a multiple of s².
        power: 1 or ½; None chooses.
        alpha: Penalty; None chooses it.
        landmarks: At most so many.
        seed: Of the choice of landmarks.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.bridges.Kernel().fit(old, new)
        >>> bridge.transform(old[:3]).space.name
        'new'
    """

    name = "kernel"

    def __init__(
        self,
        *,
        width: float = 2.0,
        power: float | None = None,
        alpha: float | None = None,
        landmarks: int = 2048,
        seed: int = 0,
    ) -> None:
        self.width = width
        self.power = power
        self.alpha = alpha
        self.landmarks = landmarks
        self.seed = seed

    def _chosen(self, pairs: Pairs) -> _Solved:
        """With the power and penalty that left-out retrieval chooses; once for these pairs."""
        return pairs.shared(("kernel", repr(self.settings())), lambda: self._choose(pairs))

    def _choose(self, pairs: Pairs) -> _Solved:
        few = pairs
        if len(pairs) > POWER_SAMPLE:  # the power shows on a part as well as on all
            few = pairs.part(sample_rows(len(pairs), self.seed, POWER_SAMPLE))
        powers = POWERS if self.power is None else (self.power,)
        best = max((self._solved(few, power) for power in powers), key=_Solved.key)
        if few is not pairs:
            best = self._solved(pairs, best.features.power)
        return best

    def map_left_out(self, fold: Fold) -> FloatArray:
        """From the decomposition of all pairs; power and α are chosen once for all folds."""
        pairs, left_out = fold.pairs, fold.left_out
        if len(fold) < self.pairs_needed(pairs.source.space.dim, pairs.target.space.dim):
            return super().map_left_out(fold)
        best = self._chosen(pairs)
        alpha = best.choice.alpha if self.alpha is None else float(self.alpha)
        z = best.features.coordinates(left_out, best.spectrum)
        mapped = best.spectrum.left_out_block(z, pairs.y(left_out), alpha) if alpha > 0 else None
        if mapped is None:
            return super().map_left_out(fold)
        return self._as_applied(mapped[fold.places], pairs.target.space)

    def _fit(self, pairs: Pairs) -> None:
        best = self._chosen(pairs)
        features = best.features
        self.power_, self.scale_ = features.power, features.scale
        self.alpha_ = best.choice.alpha if self.alpha is None else float(self.alpha)
        self.shift_ = features.shift.astype(np.float32)  # (Ds,)
        self.landmarks_ = features.landmarks.astype(np.float32)  # (M, Ds)
        self.weight_, self.bias_ = features.solve(best.spectrum, self.alpha_)  # (M, Dt), (Dt,)

    def _solved(self, pairs: Pairs, power: float) -> _Solved:
        landmarks = sample_rows(len(pairs), self.seed, self.landmarks)
        features = _Features(pairs, landmarks=landmarks, power=power, width=self.width)
        spectrum = features.spectrum()
        rows = sample_rows(len(pairs), self.seed)
        choice = spectrum.choose_alpha_at(
            features.coordinates(rows, spectrum),
            features.y(rows),
            metric=pairs.target.space.metric,
            alphas=ALPHAS[4:],  # smaller ones make weights too large for float32
        )
        return _Solved(features, spectrum, choice)

    def _map(self, rows: FloatArray) -> FloatArray:
        bent = rows
        if self.power_ != 1.0:
            bent = np.sign(rows) * np.abs(rows) ** np.float32(self.power_)
            bent = unit(bent) if self.source.metric == "cosine" else bent
        bent = (bent - self.shift_) * np.float32(self.scale_)
        near = 2.0 * bent @ self.landmarks_.T
        near -= np.einsum("md,md->m", self.landmarks_, self.landmarks_)
        near -= np.sum(bent * bent, axis=-1, keepdims=True)
        mapped: FloatArray = np.exp(np.minimum(near, 0.0)) @ self.weight_
        mapped += self.bias_
        return mapped

    def _graph(self, graph: Graph, rows: str) -> str:
        bent = rows
        if self.power_ != 1.0:
            size = graph.op("Pow", graph.op("Abs", rows), graph.constant(np.float32(self.power_)))
            bent = graph.op("Mul", graph.op("Sign", rows), size)
            bent = graph.unit(bent) if self.source.metric == "cosine" else bent
        bent = graph.op("Sub", bent, graph.constant(self.shift_))
        bent = graph.op("Mul", bent, graph.constant(np.float32(self.scale_)))
        squared = np.einsum("md,md->m", self.landmarks_, self.landmarks_)
        near = graph.affine(bent, 2.0 * self.landmarks_.T, -squared)
        near = graph.op("Sub", near, graph.row_sum(graph.op("Mul", bent, bent)))
        near = graph.op("Exp", graph.op("Min", near, graph.constant(np.float32(0.0))))
        return graph.affine(near, self.weight_, self.bias_)


@dataclass(frozen=True, slots=True)
class _Solved:
    features: _Features
    spectrum: Spectrum
    choice: Choice

    def key(self) -> tuple[float, float]:
        return self.choice.key()


class _Features:
    """Pairs whose inputs are rows with the kernel as inner product, made when they are read.

    In float32, which halves the time: the smallest penalty that is tried is a hundred times its
    rounding.
    """

    def __init__(self, pairs: Pairs, *, landmarks: IntArray, power: float, width: float) -> None:
        self.pairs, self.power = pairs, power
        self.shift: Float64 = np.zeros(())
        self.scale = 1.0
        bent = self._bent(landmarks)
        self.shift = bent.mean(axis=0)
        gap = 2.0 * float(np.sum(np.var(bent, axis=0)))  # mean squared distance
        # Such that exp(-‖x̃ - z̃‖²) is the kernel; at the mean float32 has digits to spare.
        self.scale = float(1.0 / np.sqrt(max(2.0 * width * gap, TINY)))
        self.landmarks: FloatArray = ((bent - self.shift) * self.scale).astype(np.float32)
        self._near = _similarity(self.landmarks, self.landmarks)  # (M, M)
        # Directions below are noise in float32. The top eigenvalue: all similarities are positive.
        least = 1e-5 * float(self._near.mean()) * len(landmarks)
        self._vectors: FloatArray | None = None
        if len(landmarks) < len(pairs):  # any root of the similarities does; this one is quick
            self._near[np.diag_indices_from(self._near)] += np.float32(least)
            self.whiten = _inverse_root(self._near)  # (M, M)
        else:  # exact: the directions of all pairs, which decompose their features as well
            centred = self._near - self._near.mean(axis=0, dtype=np.float64).astype(np.float32)
            centred -= centred.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
            values, vectors = eigh(centred)
            kept = values > least
            self._values: Float64 = values[kept].astype(np.float64)
            self._vectors = vectors[:, kept]
            self.whiten = (self._vectors / np.sqrt(self._values)).astype(np.float32)  # (M, r)

    def spectrum(self) -> Spectrum:
        if self._vectors is None:
            return self._decomposed()
        y = self.y()
        mean_y = y.mean(axis=0)
        mean_x = self._near.mean(axis=0, dtype=np.float64) @ self.whiten
        # Features about their mean are V√λ: the similarities need not be multiplied again.
        turned = (self._vectors.T @ (y - mean_y).astype(np.float32)).astype(np.float64)
        cross = np.sqrt(self._values)[:, None] * turned
        return Spectrum(len(y), mean_x, mean_y, self._values, np.eye(len(self._values)), cross)

    def _decomposed(self) -> Spectrum:
        m = moments(self)
        values, vectors = eigh(m.gram.astype(np.float32))
        kept = values > ROUNDING * values[-1]
        basis = vectors[:, kept]
        cross = (basis.T @ m.cross.astype(np.float32)).astype(np.float64)
        return Spectrum(m.count, m.mean_x, m.mean_y, values[kept].astype(np.float64), basis, cross)

    def coordinates(self, rows: IntArray, spectrum: Spectrum) -> Float64 | FloatArray:
        """(n, r) the rows in the spectrum's basis."""
        if self._vectors is not None:
            return self._vectors[rows] * np.sqrt(self._values)
        centred: FloatArray = self.x(rows) - spectrum.mean_x.astype(np.float32)
        return centred @ spectrum.basis

    def solve(self, spectrum: Spectrum, alpha: float) -> tuple[FloatArray, FloatArray]:
        """Weights of the landmarks' similarities, and the bias."""
        inner: FloatArray = (spectrum.cross / (spectrum.values + alpha)[:, None]).astype(np.float32)
        if self._vectors is None:  # else the basis is the identity
            inner = (spectrum.basis @ inner).astype(np.float32)
        bias: FloatArray = (spectrum.mean_y - spectrum.mean_x @ inner).astype(np.float32)
        weight: FloatArray = self.whiten @ inner
        return weight, bias

    def __len__(self) -> int:
        return len(self.pairs)

    def x(self, rows: slice | IntArray = slice(None)) -> FloatArray:
        bent = ((self._bent(rows) - self.shift) * self.scale).astype(np.float32)
        features: FloatArray = _similarity(bent, self.landmarks) @ self.whiten
        return features

    def y(self, rows: slice | IntArray = slice(None)) -> Float64:
        return self.pairs.y(rows)

    def _bent(self, rows: slice | IntArray) -> Float64:
        """Before shift and scale."""
        x = self.pairs.x(rows)
        if self.power == 1.0:
            return x
        bent = np.sign(x) * np.abs(x) ** self.power
        if self.pairs.source.space.metric == "cosine":
            bent /= np.maximum(np.linalg.norm(bent, axis=1, keepdims=True), TINY)
        return bent


def _inverse_root(matrix: FloatArray) -> FloatArray:
    """W with W Wᵀ = matrix⁻¹."""
    from scipy.linalg import cholesky, solve_triangular

    root = cholesky(matrix, lower=True, check_finite=False)
    one = np.eye(len(root), dtype=root.dtype)
    inverse = solve_triangular(root, one, lower=True, check_finite=False)
    upper: FloatArray = inverse.T
    return upper


def _similarity(rows: FloatArray, landmarks: FloatArray) -> FloatArray:
    near: FloatArray = rows @ landmarks.T  # one array, changed in place: it is large
    near *= np.float32(2.0)
    near -= np.einsum("nd,nd->n", rows, rows)[:, None]
    near -= np.einsum("md,md->m", landmarks, landmarks)
    np.minimum(near, np.float32(0.0), out=near)
    return np.exp(near, out=near)
