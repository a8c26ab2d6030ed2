"""Several bridges between the same two spaces, averaged: each errs elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from midspan.bridges import BRIDGES
from midspan.bridges.base import Bridge, Float64, Fold, Pairs, unit
from midspan.config import build
from midspan.errors import ConfigError
from midspan.spaces import FloatArray

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph

MEMBERS: tuple[dict[str, Any], ...] = (
    {"name": "ridge"},
    {"name": "kernel"},
    {"name": "procrustes", "scale": True, "center": True, "few_pairs": True},
)


class Blend(Bridge):
    """The mean of the members' (in a cosine space: normalised) vectors.

    Each member is a name from BRIDGES with its settings. The default three (ours) were chosen by
    cross-validation on the fit classes of benchmarks/bridges.py: a ridge shrinks what it does not
    know, a rotation does not, a kernel bends; each errs elsewhere.

    Args:
        members: Such names with settings, at least one.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.bridges.Blend().fit(old, new)
        >>> bridge.transform(old[:3]).space.name
        'new'
    """

    name = "blend"

    def __init__(self, *, members: tuple[dict[str, Any], ...] = MEMBERS) -> None:
        self.members = tuple(dict(member) for member in members)
        if not self.members:
            raise ConfigError("expected at least one member, such as {'name': 'ridge'}, got none")

    def pairs_needed(self, source_dim: int, target_dim: int) -> int:
        return max(member.pairs_needed(source_dim, target_dim) for member in self._built())

    def _built(self) -> list[Bridge]:
        return [build(BRIDGES, _section(member), what="bridge") for member in self.members]

    def _fit(self, pairs: Pairs) -> None:
        self.members_ = [member.fit_pairs(pairs) for member in self._built()]

    def map_left_out(self, fold: Fold) -> FloatArray:
        mapped = [member.map_left_out(fold) for member in self._built()]
        mean: Float64 = np.mean(mapped, axis=0, dtype=np.float64)
        return self._as_applied(mean, fold.pairs.target.space)

    def _map(self, rows: FloatArray) -> FloatArray:
        mapped = [member._map(rows) for member in self.members_]
        if self.target.metric == "cosine":
            mapped = [unit(one) for one in mapped]
        mean: FloatArray = np.mean(mapped, axis=0, dtype=np.float32)
        return mean

    def _graph(self, graph: Graph, rows: str) -> str:
        mapped = [member._graph(graph, rows) for member in self.members_]
        if self.target.metric == "cosine":
            mapped = [graph.unit(one) for one in mapped]
        return graph.op("Mean", *mapped)


def _section(member: Mapping[str, Any]) -> dict[str, Any]:
    if member.get("name") == Blend.name:
        raise ConfigError("a blend may not hold a blend; name its members instead")
    return dict(member)
