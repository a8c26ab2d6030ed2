"""One affine map for all, and a correction for each region of the source space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from midspan.bridges.base import TINY, Bridge, Float64, Fold, Pairs
from midspan.bridges.least_squares import ALPHAS, Arrays, decompose, shared_choice, shared_spectrum
from midspan.spaces import FloatArray, IntArray

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph


class Local(Bridge):
    """Ridge for all pairs, then one ridge per cluster on what the first leaves over.

    The corrections of a vector's clusters are blended with softmax(-d²/(temperature·s²)) over its
    squared distances to the centres, s² the mean squared distance to the nearest. The left-over
    is the left-out residual of the first ridge, so a cluster learns only what is really missed;
    where its own left-out error is no better than no correction, it gets none: with few pairs the
    result is plain ridge. 8 clusters as in a published report on text models; the rest is ours.

    Args:
        clusters: Of the source vectors.
        temperature: Of the blend of corrections.
        alpha: Penalty; None chooses it as `Ridge` does.
        seed: Of the clusters.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.bridges.Local().fit(old, new)
        >>> bridge.transform(old[:3]).space.name
        'new'
    """

    name = "local"

    def __init__(
        self,
        *,
        clusters: int = 8,
        temperature: float = 0.5,
        alpha: float | None = None,
        seed: int = 0,
    ) -> None:
        self.clusters = clusters
        self.temperature = temperature
        self.alpha = alpha
        self.seed = seed

    def pairs_needed(self, source_dim: int, target_dim: int) -> int:
        return max(8, 4 * self.clusters)

    def _instead(self) -> str:
        return ", or ask for fewer clusters"

    def _fit(self, pairs: Pairs) -> None:
        x, y = pairs.x(), pairs.y()
        spectrum = shared_spectrum(pairs)
        self.alpha_ = (
            shared_choice(pairs, seed=self.seed).alpha if self.alpha is None else float(self.alpha)
        )
        weight, bias = spectrum.solve(self.alpha_)
        missed = y - spectrum.left_out(x, y, self.alpha_)

        centres, nearest = k_means(x, self.clusters, seed=self.seed)
        gaps = np.sum((x - centres[nearest]) ** 2, axis=1)
        self.spread_ = max(float(gaps.mean()) * self.temperature, TINY)
        corrections = np.zeros((len(centres), *weight.shape))
        shifts = np.zeros((len(centres), len(bias)))
        for k in range(len(centres)):
            members = nearest == k
            if members.sum() >= 4:
                corrections[k], shifts[k] = _correction(x[members], missed[members])
        self.weight_ = weight.astype(np.float32)  # (Ds, Dt)
        self.bias_ = bias.astype(np.float32)  # (Dt,)
        self.centres_ = centres.astype(np.float32)  # (K, Ds)
        self.corrections_ = corrections.astype(np.float32)  # (K, Ds, Dt)
        self.shifts_ = shifts.astype(np.float32)  # (K, Dt)

    def map_left_out(self, fold: Fold) -> FloatArray:
        """With the α of all pairs, as `Ridge` has it."""
        if self.alpha is not None:
            return super().map_left_out(fold)
        alpha = shared_choice(fold.pairs, seed=self.seed).alpha
        return type(self)(**{**self.settings(), "alpha": alpha}).map_left_out(fold)

    def _shares(self, rows: FloatArray) -> FloatArray:
        """(N, K) how much of each cluster's correction a row gets."""
        squared = np.einsum("kd,kd->k", self.centres_, self.centres_)
        logits = (2.0 * rows @ self.centres_.T - squared) / np.float32(self.spread_)
        logits -= logits.max(axis=-1, keepdims=True)
        shares: FloatArray = np.exp(logits)
        shares /= shares.sum(axis=-1, keepdims=True)
        return shares

    def _map(self, rows: FloatArray) -> FloatArray:
        shares = self._shares(rows)
        mapped: FloatArray = rows @ self.weight_ + self.bias_ + shares @ self.shifts_
        for k, correction in enumerate(self.corrections_):
            mapped += shares[..., k : k + 1] * (rows @ correction)
        return mapped

    def _graph(self, graph: Graph, rows: str) -> str:
        squared = np.einsum("kd,kd->k", self.centres_, self.centres_)
        spread = np.float32(self.spread_)
        logits = graph.affine(rows, 2.0 * self.centres_.T / spread, -squared / spread)
        shares = graph.op("Softmax", logits, axis=-1)
        mapped = graph.op(
            "Add", graph.affine(rows, self.weight_, self.bias_), graph.matmul(shares, self.shifts_)
        )
        for k, correction in enumerate(self.corrections_):
            one = np.zeros((len(self.centres_), 1), dtype=np.float32)
            one[k] = 1.0
            share = graph.matmul(shares, one)
            mapped = graph.op("Add", mapped, graph.op("Mul", share, graph.matmul(rows, correction)))
        return mapped


def _correction(x: Float64, missed: Float64) -> tuple[Float64, Float64]:
    """Ridge on the left-over of one cluster; zero if it would not help."""
    spectrum = decompose(Arrays(x, missed))
    alphas = [factor * spectrum.unit_alpha for factor in ALPHAS]
    errors = spectrum.left_out_errors(x, missed, alphas)
    best = int(np.argmin(errors))
    if not errors[best] < float(np.sum(missed**2)):
        return np.zeros((x.shape[1], missed.shape[1])), np.zeros(missed.shape[1])
    return spectrum.solve(alphas[best])


def k_means(x: Float64, clusters: int, *, seed: int, rounds: int = 25) -> tuple[Float64, IntArray]:
    """Lloyd's algorithm from a k-means++ start: centres (K, D) and the nearest of each row."""
    rng = np.random.default_rng(seed)
    centres = x[[int(rng.integers(len(x)))]]
    gaps = np.sum((x - centres[0]) ** 2, axis=1)
    while len(centres) < clusters and gaps.max() > TINY:  # fewer if all rows are taken
        centres = np.vstack([centres, x[int(rng.choice(len(x), p=gaps / gaps.sum()))]])
        gaps = np.minimum(gaps, np.sum((x - centres[-1]) ** 2, axis=1))
    nearest = np.full(len(x), -1)
    for _ in range(rounds):
        before = nearest
        nearest = np.argmax(2.0 * x @ centres.T - np.sum(centres**2, axis=1), axis=1)
        if np.array_equal(before, nearest):
            break
        for k in range(len(centres)):
            if (members := nearest == k).any():
                centres[k] = x[members].mean(axis=0)
    return centres, nearest
