"""Kernel ridge regression: a smooth non-linear map that is still solved, not trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from midspan.bridges.base import TINY, Bridge, Float64, Pairs, unit
from midspan.bridges.least_squares import ALPHAS, Choice, Spectrum, decompose, sample_rows
from midspan.spaces import FloatArray, IntArray

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph

POWER_SAMPLE = 2048  # pairs that choose the power
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
        few = pairs
        if len(pairs) > POWER_SAMPLE:  # the power shows on a part as well as on all
            few = pairs.part(sample_rows(len(pairs), self.seed, POWER_SAMPLE))
        powers = POWERS if self.power is None else (self.power,)
        best = max((self._solved(few, power) for power in powers), key=_Solved.key)
        if few is not pairs:
            best = self._solved(pairs, best.features.power)
        features = best.features
        self.power_, self.scale_ = features.power, features.scale
        self.alpha_ = best.choice.alpha if self.alpha is None else float(self.alpha)
        self.shift_ = features.shift.astype(np.float32)  # (Ds,)
        self.landmarks_ = features.landmarks.astype(np.float32)  # (M, Ds)
        weight, bias = best.spectrum.solve(self.alpha_)
        self.weight_ = (features.whiten @ weight).astype(np.float32)  # (M, Dt)
        self.bias_ = bias.astype(np.float32)  # (Dt,)

    def _solved(self, pairs: Pairs, power: float) -> _Solved:
        landmarks = sample_rows(len(pairs), self.seed, self.landmarks)
        features = _Features(pairs, landmarks=landmarks, power=power, width=self.width)
        spectrum = decompose(features)
        rows = sample_rows(len(pairs), self.seed)
        choice = spectrum.choose_alpha(
            features.x(rows),
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
    """Pairs whose inputs are rows with the kernel as inner product, made when they are read."""

    def __init__(self, pairs: Pairs, *, landmarks: IntArray, power: float, width: float) -> None:
        self.pairs, self.power = pairs, power
        self.shift: Float64 = np.zeros(())
        self.scale = 1.0
        bent = self._bent(landmarks)
        self.shift = bent.mean(axis=0)
        gap = 2.0 * float(np.sum(np.var(bent, axis=0)))  # mean squared distance
        # Such that exp(-‖x̃ - z̃‖²) is the kernel; at the mean float32 has digits to spare.
        self.scale = float(1.0 / np.sqrt(max(2.0 * width * gap, TINY)))
        self.landmarks = self._bent(landmarks)
        values, vectors = np.linalg.eigh(_similarity(self.landmarks, self.landmarks))
        kept = values > values[-1] * 1e-5  # smaller ones would be noise in float32
        self.whiten = vectors[:, kept] / np.sqrt(values[kept])  # (M, r)

    def __len__(self) -> int:
        return len(self.pairs)

    def x(self, rows: slice | IntArray = slice(None)) -> Float64:
        features: Float64 = _similarity(self._bent(rows), self.landmarks) @ self.whiten
        return features

    def y(self, rows: slice | IntArray = slice(None)) -> Float64:
        return self.pairs.y(rows)

    def _bent(self, rows: slice | IntArray) -> Float64:
        x = self.pairs.x(rows)
        bent = np.sign(x) * np.abs(x) ** self.power
        if self.pairs.source.space.metric == "cosine":
            bent /= np.maximum(np.linalg.norm(bent, axis=1, keepdims=True), TINY)
        return (bent - self.shift) * self.scale


def _similarity(rows: Float64, landmarks: Float64) -> Float64:
    gaps = np.sum(rows**2, axis=1)[:, None] + np.sum(landmarks**2, axis=1)
    gaps -= 2.0 * rows @ landmarks.T
    near: Float64 = np.exp(-np.maximum(gaps, 0.0))
    return near
