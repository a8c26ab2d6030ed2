"""An affine map through a narrow waist: small to store, quick to apply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from midspan.bridges.base import Bridge, Pairs
from midspan.bridges.least_squares import decompose, sample_rows
from midspan.spaces import FloatArray

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph


class LowRank(Bridge):
    """Reduced-rank regression: the ridge fit, projected on the r directions its predictions use.

    With Ŷ = XW the factors are WV and Vᵀ, V the top right singular vectors of Ŷ (Izenman 1975).
    `rank` 64 as in Drift-Adapter (EMNLP 2025); it is cut to what dims and pairs allow.
    """

    name = "low_rank"

    def __init__(self, *, rank: int = 64, alpha: float | None = None, seed: int = 0) -> None:
        self.rank = rank
        self.alpha = alpha
        self.seed = seed

    def _fit(self, pairs: Pairs) -> None:
        spectrum = decompose(pairs)
        if self.alpha is None:
            rows = sample_rows(len(pairs), self.seed)
            choice = spectrum.choose_alpha(
                pairs.x(rows), pairs.y(rows), metric=pairs.target.space.metric
            )
            self.alpha_ = choice.alpha
        else:
            self.alpha_ = float(self.alpha)
        weight, _ = spectrum.solve(self.alpha_)
        # Ŷ = Z M with ZᵀZ = diag(λ): its right singular vectors are those of √λ M.
        predicted = (
            spectrum.cross * (np.sqrt(spectrum.values) / (spectrum.values + self.alpha_))[:, None]
        )
        _, _, directions = np.linalg.svd(predicted, full_matrices=False)
        directions = directions[: self.rank]  # (r, Dt)
        narrow = weight @ directions.T  # (Ds, r)
        self.down_ = narrow.astype(np.float32)
        self.up_ = directions.astype(np.float32)
        self.bias_ = (spectrum.mean_y - spectrum.mean_x @ narrow @ directions).astype(np.float32)

    def _map(self, rows: FloatArray) -> FloatArray:
        mapped: FloatArray = (rows @ self.down_) @ self.up_
        mapped += self.bias_
        return mapped

    def _graph(self, graph: Graph, rows: str) -> str:
        return graph.affine(graph.matmul(rows, self.down_), self.up_, self.bias_)
