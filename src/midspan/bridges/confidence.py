"""How wrong a mapped vector probably is: an order for the backfill, and what to reject."""

from __future__ import annotations

from typing import Self

import numpy as np

from midspan.bridges.base import TINY, Bridge, Float64, Pairs, prepared
from midspan.bridges.least_squares import Arrays, decompose
from midspan.errors import RunError
from midspan.spaces import Embeddings, FloatArray, IntArray

BLOCK = 2048  # items at a time


class Confidence:
    """Residual regression: log error ~ a few features of an item, learnt out of fold.

    The bridge is fitted again on `folds` - 1 parts of the pairs and its error measured on the
    last, so the errors are those of items it has not seen: 1 - cos in a cosine space, squared
    distance elsewhere. Features (ours): mean similarity to the `neighbours` nearest fit items,
    share of the vector outside the main directions of the fit set, and length of the mapped
    vector before normalisation (a regression shrinks what it does not know).
    `quality_` is the rank correlation of predicted and true error, itself out of fold: near 0
    the order is no better than random. Bridges of kind fct bring a head of their own
    (`FCT.log_variance`).

    Args:
        neighbours: Nearest fit items that count.
        folds: Parts that the pairs are cut into.
        alpha: Penalty of the regression.
        seed: Of the folds.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> confidence = ms.bridges.Confidence().fit(ms.bridges.Ridge().fit(old, new), old, new)
        >>> confidence.predict(old[:3]).shape  # the expected error of each mapped vector
        (3,)
    """

    def __init__(
        self, *, neighbours: int = 10, folds: int = 5, alpha: float = 1.0, seed: int = 0
    ) -> None:
        self.neighbours = neighbours
        self.folds = folds
        self.alpha = alpha
        self.seed = seed
        self.quality_ = float("nan")
        self._bridge: Bridge | None = None

    def __repr__(self) -> str:
        fitted = "not fitted" if self._bridge is None else f"quality {self.quality_:.2f}"
        return f"Confidence({fitted}; neighbours={self.neighbours}, folds={self.folds})"

    def fit(self, bridge: Bridge, source: Embeddings, target: Embeddings) -> Self:
        """`bridge` is a fitted one; source and target are the pairs it was fitted on."""
        pairs = Pairs.of(source, target)
        bridge.check_source(pairs.source.space)
        parts = np.array_split(np.random.default_rng(self.seed).permutation(len(pairs)), self.folds)
        features = np.empty((len(pairs), 3))
        errors = np.empty(len(pairs))
        for part in parts:
            rest = np.setdiff1d(np.arange(len(pairs)), part)
            fit = pairs.part(rest)
            again = bridge.clone().fit(fit.source, fit.target)
            known = _Known(prepared(fit.source.vectors, fit.source.space), self.neighbours)
            held = pairs.part(part)
            features[part] = _features(again, known, held.source)
            errors[part] = _errors(again.transform(held.source).vectors, held)
        targets = np.log(np.maximum(errors, TINY))
        self.quality_ = _rank_correlation(self._out_of_fold(features, targets, parts), targets)
        self._weight, self._bias, self._mean, self._scale = self._regress(features, targets)
        self._bridge = bridge
        self._known = _Known(pairs.x(), self.neighbours)
        return self

    def predict(self, embeddings: Embeddings) -> FloatArray:
        """(N,) expected error of each item's mapped vector."""
        if self._bridge is None:
            raise RunError("this confidence is not fitted yet; call fit(bridge, source, target)")
        self._bridge.check_source(embeddings.space)
        predicted = np.empty(len(embeddings), dtype=np.float32)
        for start in range(0, len(embeddings), BLOCK):
            part = embeddings[start : start + BLOCK]
            z = (_features(self._bridge, self._known, part) - self._mean) / self._scale
            predicted[start : start + BLOCK] = np.exp(z @ self._weight + self._bias)
        return predicted

    def backfill_order(self, embeddings: Embeddings) -> IntArray:
        """Rows, the most doubtful first."""
        return np.argsort(-self.predict(embeddings), kind="stable")

    def _regress(
        self, features: Float64, targets: Float64
    ) -> tuple[Float64, float, Float64, Float64]:
        mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), TINY)
        rows = Arrays((features - mean) / scale, targets[:, None])
        weight, bias = decompose(rows).solve(self.alpha)
        return weight[:, 0], float(bias[0]), mean, scale

    def _out_of_fold(self, features: Float64, targets: Float64, parts: list[IntArray]) -> Float64:
        predicted = np.empty(len(targets))
        for part in parts:
            rest = np.setdiff1d(np.arange(len(targets)), part)
            weight, bias, mean, scale = self._regress(features[rest], targets[rest])
            predicted[part] = (features[part] - mean) / scale @ weight + bias
        return predicted


class _Known:
    """The fit set, as the features ask for it."""

    def __init__(self, x: Float64, neighbours: int) -> None:
        self.x = x
        self.neighbours = min(neighbours, len(x) - 1)
        self.mean = x.mean(axis=0)
        gram = np.linalg.svd(x - self.mean, full_matrices=False)
        share = np.cumsum(gram[1] ** 2) / max(float(np.sum(gram[1] ** 2)), TINY)
        self.directions = gram[2][: int(np.searchsorted(share, 0.9)) + 1]  # 90 % of the variance


def _features(bridge: Bridge, known: _Known, embeddings: Embeddings) -> Float64:
    x = prepared(embeddings.vectors, embeddings.space)
    gaps = np.sum(x**2, axis=1)[:, None] + np.sum(known.x**2, axis=1) - 2.0 * x @ known.x.T
    gaps[gaps < 1e-10] = np.inf  # a fit item is no neighbour of itself
    nearest = np.partition(gaps, known.neighbours - 1, axis=1)[:, : known.neighbours]
    nearest = np.where(np.isfinite(nearest), nearest, 0.0)
    centred = x - known.mean
    inside = np.sum((centred @ known.directions.T) ** 2, axis=1)
    outside = 1.0 - inside / np.maximum(np.sum(centred**2, axis=1), TINY)
    length = np.linalg.norm(bridge.unnormalised(embeddings.vectors), axis=1)
    return np.stack([nearest.mean(axis=1), outside, length], axis=1)


def _errors(mapped: FloatArray, held: Pairs) -> Float64:
    targets = held.y()
    if held.target.space.metric == "cosine":
        errors: Float64 = 1.0 - np.einsum("nd,nd->n", mapped.astype(np.float64), targets)
    else:
        errors = np.sum((mapped - targets) ** 2, axis=1)
    return errors


def _rank_correlation(a: Float64, b: Float64) -> float:
    from scipy.stats import rankdata

    ranks = np.corrcoef(rankdata(a), rankdata(b))
    return float(ranks[0, 1])
