"""Kernel ridge regression: a smooth non-linear map that is still solved, not trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from midspan.bridges.base import TINY, Bridge, Float64, Pairs, unit
from midspan.bridges.least_squares import ALPHAS, Arrays, Choice, Spectrum, decompose, sample_rows
from midspan.spaces import FloatArray

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph

POWERS = (1.0, 0.5)  # as they are, or the signed root, which tames bursts in features after a ReLU


class Kernel(Bridge):
    """y = b + Σ_j k(x, z_j) a_j with k(x, z) = exp(-‖x̃ - z̃‖²/(2·width·s²)).

    x̃ = sign(x)|x|^power, normalised again in a cosine space; s² is the mean squared distance
    between landmarks. `power=None` chooses 1 or ½ and `alpha=None` the penalty, both by left-out
    retrieval as in `Ridge`. The landmarks z are fit items; beyond `landmarks` of them a random
    part carries the map (Nyström) while all pairs fit it. Defaults are ours, from
    cross-validation on the fit classes of benchmarks/bridges.py.
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

    def _fit(self, pairs: Pairs) -> None:
        x, y = pairs.x(), pairs.y()
        rows = sample_rows(len(x), self.seed)
        chosen = sample_rows(len(x), self.seed, self.landmarks)
        metric = pairs.target.space.metric
        best: tuple[Choice, Spectrum, Float64] | None = None
        for power in POWERS if self.power is None else (self.power,):
            bent = self._bent(x, power)
            shift = bent[chosen].mean(axis=0)
            scale = self._scale(bent[chosen])
            bent = (bent - shift) * scale
            features, whiten = _features(bent, bent[chosen])
            spectrum = decompose(Arrays(features, y))
            choice = (
                spectrum.choose_alpha(features[rows], y[rows], metric=metric, alphas=ALPHAS[4:])
                if self.alpha is None or self.power is None
                else Choice(self.alpha, 0.0, 0.0)
            )
            if self.alpha is not None:
                choice = Choice(float(self.alpha), choice.score, choice.error)
            if best is None or choice.key() > best[0].key():
                best = choice, spectrum, whiten
                self.power_, self.scale_ = power, scale
                self.shift_ = shift.astype(np.float32)  # (Ds,)
                self.landmarks_ = bent[chosen].astype(np.float32)  # (M, Ds)
        assert best is not None
        choice, spectrum, whiten = best
        self.alpha_ = choice.alpha
        weight, bias = spectrum.solve(choice.alpha)
        self.weight_ = (whiten @ weight).astype(np.float32)  # (M, Dt)
        self.bias_ = bias.astype(np.float32)  # (Dt,)

    def _bent(self, x: Float64, power: float) -> Float64:
        bent = np.sign(x) * np.abs(x) ** power
        if self.source.metric == "cosine":
            bent /= np.maximum(np.linalg.norm(bent, axis=1, keepdims=True), TINY)
        return bent

    def _scale(self, rows: Float64) -> float:
        """Such that exp(-‖x̃ - z̃‖²) is the kernel; moving to the mean keeps float32 exact enough."""
        mean_squared_distance = 2.0 * float(np.sum(np.var(rows, axis=0)))
        return float(1.0 / np.sqrt(max(2.0 * self.width * mean_squared_distance, TINY)))

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


def _features(rows: Float64, landmarks: Float64) -> tuple[Float64, Float64]:
    """Rows whose inner products are the kernel, and the matrix that makes them from k(x, z)."""
    values, vectors = np.linalg.eigh(_similarity(landmarks, landmarks))
    kept = values > values[-1] * 1e-5  # smaller ones would be noise in float32
    whiten = vectors[:, kept] / np.sqrt(values[kept])
    return _similarity(rows, landmarks) @ whiten, whiten


def _similarity(rows: Float64, landmarks: Float64) -> Float64:
    gaps = np.sum(rows**2, axis=1)[:, None] + np.sum(landmarks**2, axis=1)
    gaps -= 2.0 * rows @ landmarks.T
    near: Float64 = np.exp(-np.maximum(gaps, 0.0))
    return near
