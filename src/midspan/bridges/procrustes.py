"""The best rotation between two spaces: keeps every distance, and so every ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from midspan.bridges.base import TINY, Bridge, Float64, Pairs
from midspan.bridges.least_squares import Rows, moments
from midspan.spaces import FloatArray

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph


class Procrustes(Bridge):
    """SVD XᵀY = UΣVᵀ, y = xUVᵀ; orthogonal Procrustes (Schönemann 1966).

    The thin factors give the same map as padding the smaller space with zeros. From few to many
    dims it is an isometry; from many to few the dims that the target lacks are cut off.
    `scale` multiplies by trΣ/‖X‖², `center` maps the mean on the mean; both off by default,
    because then similarities inside the mapped set are those of the source, exactly.
    A rotation is determined from as many pairs as the smaller dim; `few_pairs` accepts fewer and
    maps what lies outside the directions they span to nothing.

    Args:
        scale: Multiply by trΣ/‖X‖².
        center: Map the mean on the mean.
        few_pairs: Accept fewer pairs than the smaller dim.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.bridges.Procrustes().fit(old, new)
        >>> bridge.transform(old[:3]).space.name
        'new'
    """

    name = "procrustes"

    def __init__(
        self, *, scale: bool = False, center: bool = False, few_pairs: bool = False
    ) -> None:
        self.scale = scale
        self.center = center
        self.few_pairs = few_pairs

    def pairs_needed(self, source_dim: int, target_dim: int) -> int:
        if self.few_pairs:
            return 2
        return min(source_dim, target_dim) + int(self.center)

    def _instead(self) -> str:
        return ", use ridge, which is made for fewer pairs than dims, or set few_pairs=True"

    def _fit(self, pairs: Pairs) -> None:
        rotation, scale, mean_x, mean_y = best_rotation(pairs, centred=self.center)
        weight = rotation * scale if self.scale else rotation
        self.scale_ = scale
        self.weight_ = weight.astype(np.float32)  # (Ds, Dt)
        self.bias_ = (mean_y - mean_x @ weight).astype(np.float32)  # (Dt,), zero if not centred

    def _map(self, rows: FloatArray) -> FloatArray:
        mapped = rows @ self.weight_
        return mapped + self.bias_ if self.center else mapped

    def _graph(self, graph: Graph, rows: str) -> str:
        return graph.affine(rows, self.weight_, self.bias_)


def best_rotation(rows: Rows, *, centred: bool) -> tuple[Float64, float, Float64, Float64]:
    """Rotation (Ds, Dt), the scale that fits best with it, and the two means (zero if not asked).

    With fewer pairs than dims only the directions that the pairs span are rotated, and the SVD
    is that of an (N, N) matrix; the rest is left out, where a full SVD would fill it at random.
    """
    x, y = rows.x(slice(0, 1)), rows.y(slice(0, 1))
    if len(rows) >= min(x.shape[1], y.shape[1]):
        m = moments(rows, centred=centred)
        u, s, vt = np.linalg.svd(m.cross, full_matrices=False)
        return u @ vt, _scale(s, float(np.trace(m.gram))), m.mean_x, m.mean_y
    x, y = rows.x(), rows.y()
    mean_x, mean_y = x.mean(axis=0) * centred, y.mean(axis=0) * centred
    x, y = x - mean_x, y - mean_y
    basis_x, inner_x = np.linalg.qr(x.T)  # (Ds, N), (N, N)
    basis_y, inner_y = np.linalg.qr(y.T)
    u, s, vt = np.linalg.svd(inner_x @ inner_y.T)
    known = s > s[0] * len(s) * np.finfo(np.float64).eps
    rotation = (basis_x @ u[:, known]) @ (vt[known] @ basis_y.T)
    return rotation, _scale(s, float(np.vdot(x, x))), mean_x, mean_y


def _scale(singular: Float64, power: float) -> float:
    return float(singular.sum()) / max(power, TINY)
