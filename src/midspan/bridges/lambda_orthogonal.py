"""An affine map that may leave the rotations, but only so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from midspan.bridges.base import TINY, Bridge, Float64, Pairs
from midspan.bridges.least_squares import Spectrum, decompose
from midspan.spaces import FloatArray

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph


class LambdaOrthogonal(Bridge):
    """λ-orthogonality (arXiv:2509.16664): mean squared error + σ(α(F - λ))·F, F = ‖WWᵀ - I‖.

    Below `threshold` (λ) the map is free, above it is pulled back to a rotation: it adapts, and
    keeps the ranking of the source for the most part. λ = 12 and weight 1 are the paper's, which
    fits 512-d unit vectors; F of a map that shrinks everything to nothing is √d, so small spaces
    need a smaller λ. `sharpness` (α) 1 is ours.

    Departs: full-batch L-BFGS in NumPy from the best rotation instead of Adam in torch (the loss
    needs only sums over the pairs, so a step does not depend on their number); only directions
    that the pairs show are mapped, and F counts those; the paper's further terms (contrastive,
    forward map) are left out; where the target has fewer dims the columns of W are kept
    orthonormal instead of the rows.

    Args:
        threshold: λ, from which on F is penalised.
        weight: Of the penalty.
        sharpness: α of the sigmoid.
        steps: Of L-BFGS, at most.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.bridges.LambdaOrthogonal(threshold=2.0).fit(old, new)
        >>> bridge.transform(old[:3]).space.name
        'new'
    """

    name = "lambda-orthogonal"

    def __init__(
        self,
        *,
        threshold: float = 12.0,
        weight: float = 1.0,
        sharpness: float = 1.0,
        steps: int = 50,
    ) -> None:
        self.threshold = threshold
        self.weight = weight
        self.sharpness = sharpness
        self.steps = steps

    def _fit(self, pairs: Pairs) -> None:
        from scipy.optimize import minimize

        spectrum = decompose(pairs)  # in its basis XᵀX is diagonal, and F is the same
        u, _, vt = np.linalg.svd(spectrum.cross, full_matrices=False)
        start = u @ vt  # (r, Dt)

        def objective(flat: Float64) -> tuple[float, Float64]:
            matrix = flat.reshape(start.shape)
            error, slope = _mean_squared_error(matrix, spectrum)
            penalty, pull = self._penalty(matrix)
            return error + penalty, (slope + pull).ravel()

        solution = minimize(
            objective,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": self.steps, "ftol": 1e-10, "gtol": 1e-8},
        )
        matrix = solution.x.reshape(start.shape)
        weight = spectrum.basis @ matrix
        self.deviation_ = float(np.linalg.norm(_gap(matrix)))
        self.weight_ = weight.astype(np.float32)  # (Ds, Dt)
        bias = spectrum.mean_y - spectrum.mean_x @ weight
        self.bias_ = bias.astype(np.float32)  # (Dt,)

    def _penalty(self, matrix: Float64) -> tuple[float, Float64]:
        gap = _gap(matrix)
        size = float(np.linalg.norm(gap))
        gate = _sigmoid(self.sharpness * (size - self.threshold))
        value = self.weight * gate * size
        # dF/dW = 2(WWᵀ - I)W / F; at F = 0 the norm has no slope, and none is needed.
        along = gap @ matrix if len(gap) == len(matrix) else matrix @ gap
        slope = self.weight * gate * (1.0 + self.sharpness * (1.0 - gate) * size)
        return value, slope * 2.0 * along / max(size, TINY)

    def _map(self, rows: FloatArray) -> FloatArray:
        mapped: FloatArray = rows @ self.weight_
        mapped += self.bias_
        return mapped

    def _graph(self, graph: Graph, rows: str) -> str:
        return graph.affine(rows, self.weight_, self.bias_)


def _gap(matrix: Float64) -> Float64:
    """WWᵀ - I on the smaller side."""
    few, many = matrix.shape
    square = matrix @ matrix.T if few <= many else matrix.T @ matrix
    return square - np.eye(len(square))


def _mean_squared_error(matrix: Float64, spectrum: Spectrum) -> tuple[float, Float64]:
    """‖XW - Y‖²/n without its constant ‖Y‖²/n, and its slope."""
    pushed = spectrum.values[:, None] * matrix
    value = float(np.vdot(matrix, pushed)) - 2.0 * float(np.vdot(matrix, spectrum.cross))
    return value / spectrum.count, 2.0 * (pushed - spectrum.cross) / spectrum.count


def _sigmoid(value: float) -> float:
    return float(0.5 * (1.0 + np.tanh(0.5 * value)))
