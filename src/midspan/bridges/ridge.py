"""An affine map by ridge regression, its penalty chosen by what it finds, not by its error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from midspan.bridges.base import Bridge, Fold, Pairs
from midspan.bridges.least_squares import shared_choice, shared_spectrum, solve_once
from midspan.spaces import FloatArray

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph


class Ridge(Bridge):
    """y = xW + b with W = (XᵀX + αI)⁻¹XᵀY on centred pairs; b is not penalised.

    `alpha=None` (ours) takes the α under which left-out items, mapped by the fit without them,
    are best found by their true target vectors; all of them come from one eigendecomposition.
    With fewer pairs than dims the dual form is solved. `alpha=0` is plain least squares.

    Args:
        alpha: The penalty; None chooses it.
        seed: Of the choice of `alpha`.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.bridges.Ridge(alpha=0.1).fit(old, new)
        >>> bridge.transform(old[:3]).space.name
        'new'
    """

    name = "ridge"

    def __init__(self, *, alpha: float | None = None, seed: int = 0) -> None:
        self.alpha = alpha
        self.seed = seed

    def pairs_needed(self, source_dim: int, target_dim: int) -> int:
        if self.alpha is None:
            return 8
        return 2 if self.alpha > 0 else source_dim + 1

    def _instead(self) -> str:
        return "" if self.alpha is None else ", or leave alpha to be chosen"

    def _fit(self, pairs: Pairs) -> None:
        if self.alpha is not None and self.alpha > 0:
            weight, bias = solve_once(pairs, self.alpha)
            self.alpha_, self.left_out_score_ = float(self.alpha), None
        else:
            spectrum = shared_spectrum(pairs)
            if self.alpha is None:
                choice = shared_choice(pairs, seed=self.seed)
                self.alpha_, self.left_out_score_ = choice.alpha, choice.score
            else:
                self.alpha_, self.left_out_score_ = 0.0, None
            weight, bias = spectrum.solve(self.alpha_)
        self.weight_ = weight.astype(np.float32)  # (Ds, Dt)
        self.bias_ = bias.astype(np.float32)  # (Dt,)

    def map_left_out(self, fold: Fold) -> FloatArray:
        """From the decomposition of all pairs; where α is chosen, then once for all folds."""
        pairs, left_out = fold.pairs, fold.left_out
        spaces = pairs.source.space, pairs.target.space
        if self.alpha == 0 or len(fold) < self.pairs_needed(*(space.dim for space in spaces)):
            return super().map_left_out(fold)
        chosen = self.alpha or shared_choice(pairs, seed=self.seed).alpha
        spectrum = shared_spectrum(pairs)
        z = (pairs.x(left_out) - spectrum.mean_x) @ spectrum.basis
        mapped = spectrum.left_out_block(z, pairs.y(left_out), chosen)
        if mapped is None:
            return super().map_left_out(fold)
        return self._as_applied(mapped[fold.places], spaces[1])

    def _map(self, rows: FloatArray) -> FloatArray:
        mapped: FloatArray = rows @ self.weight_
        mapped += self.bias_
        return mapped

    def _graph(self, graph: Graph, rows: str) -> str:
        return graph.affine(rows, self.weight_, self.bias_)
