"""An affine map through a narrow waist: small to store, quick to apply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from midspan.bridges.base import Bridge, Float64, Fold, Pairs
from midspan.bridges.least_squares import shared_choice, shared_spectrum
from midspan.spaces import FloatArray

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph


class LowRank(Bridge):
    """Reduced-rank regression: the ridge fit, projected on the r directions its predictions use.

    With Ŷ = XW the factors are WV and Vᵀ, V the top right singular vectors of Ŷ (Izenman 1975).
    `rank` 64 as in Drift-Adapter (EMNLP 2025); it is cut to what dims and pairs allow.

    Args:
        rank: r.
        alpha: Penalty; None chooses it as `Ridge` does.
        seed: Of the choice of `alpha`.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.bridges.LowRank(rank=3).fit(old, new)
        >>> bridge.transform(old[:3]).space.name
        'new'
    """

    name = "low-rank"

    def __init__(self, *, rank: int = 64, alpha: float | None = None, seed: int = 0) -> None:
        self.rank = rank
        self.alpha = alpha
        self.seed = seed

    def _fit(self, pairs: Pairs) -> None:
        spectrum = shared_spectrum(pairs)
        if self.alpha is None:
            self.alpha_ = shared_choice(pairs, seed=self.seed).alpha
        else:
            self.alpha_ = float(self.alpha)
        weight, _ = spectrum.solve(self.alpha_)
        # Ŷ = Z M with ZᵀZ = diag(λ): its right singular vectors are those of √λ M.
        predicted: Float64 = (
            spectrum.cross * (np.sqrt(spectrum.values) / (spectrum.values + self.alpha_))[:, None]
        )
        directions = _top_directions(predicted, min(self.rank, *predicted.shape))  # (r, Dt)
        narrow: Float64 = weight @ directions.T  # (Ds, r)
        self.down_ = narrow.astype(np.float32)
        self.up_ = directions.astype(np.float32)
        self.bias_ = (spectrum.mean_y - spectrum.mean_x @ narrow @ directions).astype(np.float32)

    def map_left_out(self, fold: Fold) -> FloatArray:
        """With the α of all pairs, as `Ridge` has it."""
        if self.alpha is not None:
            return super().map_left_out(fold)
        alpha = shared_choice(fold.pairs, seed=self.seed).alpha
        return type(self)(**{**self.settings(), "alpha": alpha}).map_left_out(fold)

    def _map(self, rows: FloatArray) -> FloatArray:
        narrow: FloatArray = rows @ self.down_
        mapped: FloatArray = narrow @ self.up_
        mapped += self.bias_
        return mapped

    def _graph(self, graph: Graph, rows: str) -> str:
        return graph.affine(graph.matmul(rows, self.down_), self.up_, self.bias_)


def _top_directions(rows: Float64, count: int) -> Float64:
    """(count, D) the first right singular vectors; a whole SVD takes four times as long."""
    from scipy.linalg import eigh

    dim = rows.shape[1]
    _, vectors = eigh(rows.T @ rows, subset_by_index=(dim - count, dim - 1), check_finite=False)
    top: Float64 = vectors[:, ::-1].T
    return top
