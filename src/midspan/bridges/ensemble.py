"""Many gallery encoders, one query encoder: mapped apart, averaged, asked how far they agree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from midspan.bridges import BRIDGES
from midspan.bridges.base import Bridge, Float64, unit
from midspan.bridges.files import load_bridge
from midspan.config import build
from midspan.errors import FormatError, RunError, SpaceMismatch, VectorError
from midspan.spaces import Embeddings, FloatArray, Space

FORMAT = "midspan-ensemble"


class GalleryEnsemble:
    """Each gallery encoder gets its own bridge into the query space; an item is their mean.

    Asymmetric retrieval with cross-model-compatible ensembles (WACV 2024): the query side runs one
    encoder and never changes, the gallery side spends as much as it likes. The bridges are fitted
    independently, the mapped vectors normalised, then averaged (joint training, learned weights
    and concatenation did worse there). `bridge` names the kind from BRIDGES with its settings;
    the paper uses rbt, ridge is our default.

    Args:
        bridge: Such as {"name": "rbt"}; None is ridge.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> other = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 5)), ms.Space("other", 5))
        >>> ensemble = ms.bridges.GalleryEnsemble().fit([new, other], query=old)
        >>> mapped = ensemble.transform([new, other])
        >>> mapped.space.name, "uncertainty" in mapped.columns
        ('old', True)
    """

    def __init__(self, *, bridge: dict[str, Any] | None = None) -> None:
        self.bridge = {"name": "ridge"} if bridge is None else dict(bridge)
        self.bridges_: list[Bridge] = []
        self._query: Space | None = None

    def fit(self, galleries: Sequence[Embeddings], query: Embeddings) -> Self:
        """One bridge for each gallery set, fitted on the ids it shares with `query`."""
        if not galleries:
            raise VectorError("expected the embeddings of at least one gallery encoder, got none")
        self.bridges_, self._query = [], query.space
        for gallery in galleries:
            self.add(gallery, query)
        return self

    def add(self, gallery: Embeddings, query: Embeddings) -> Self:
        """One more gallery encoder; the others and the query side stay as they are."""
        if not query.space.metric == "cosine":
            raise SpaceMismatch(f"an ensemble averages directions; {query.space} is not cosine")
        if self._query is not None and not query.space.same_as(self._query):
            raise SpaceMismatch(
                f"this ensemble leads to {self._query}, these queries are in {query.space}; "
                "use refit(stored, query) to move it to a new query encoder"
            )
        if any(gallery.space.same_as(known.source) for known in self.bridges_):
            raise SpaceMismatch(f"{gallery.space} is in this ensemble already")
        self._query = query.space
        made: Bridge = build(BRIDGES, self.bridge, what="bridge")
        self.bridges_.append(made.fit(gallery, query))
        return self

    def refit(self, stored: Sequence[Embeddings], query: Embeddings) -> GalleryEnsemble:
        """The ensemble for a new query encoder, from raw gallery vectors that were kept.

        No image is read: `query` needs new vectors only for the items that serve as pairs.
        """
        return GalleryEnsemble(bridge=self.bridge).fit(stored, query)

    @property
    def query_space(self) -> Space:
        if self._query is None:
            raise RunError("this ensemble is not fitted yet; call fit(galleries, query)")
        return self._query

    def queries(self, embeddings: Embeddings) -> Embeddings:
        """The query side: nothing happens to a query, whatever the gallery holds."""
        if not embeddings.space.same_as(self.query_space):
            raise SpaceMismatch(
                f"these queries are in {embeddings.space}, the gallery in {self.query_space}"
            )
        return embeddings

    def transform(self, galleries: Sequence[Embeddings]) -> Embeddings:
        """One vector an item in the query space, with a column `uncertainty` (NaN from one view).

        Items need not be in every set: each is averaged over the encoders that have seen it.
        """
        ids = np.unique(np.concatenate([gallery.ids for gallery in galleries]))
        total = np.zeros((len(ids), self.query_space.dim))
        views = np.zeros(len(ids))
        first = np.full(len(ids), -1)
        for place, gallery in enumerate(galleries):
            rows = np.searchsorted(ids, gallery.ids)
            total[rows] += unit(self._bridge_of(gallery.space).transform(gallery).vectors)
            views[rows] += 1
            first[rows[first[rows] < 0]] = place
        mean = total / views[:, None]
        columns = _columns(ids, first, galleries)
        columns["uncertainty"] = disagreement(mean, views)
        return Embeddings(
            ids=ids,
            vectors=unit(mean.astype(np.float32)),
            space=self.query_space,
            columns=columns,
            numbered=any(gallery.numbered for gallery in galleries),
        )

    def save(self, folder: str | Path) -> Path:
        """One bridge folder for each gallery encoder, and `ensemble.json` that counts them."""
        folder = Path(folder)
        for place, bridge in enumerate(self.bridges_):
            bridge.save(folder / f"gallery-{place}")
        document = {"format": FORMAT, "members": len(self.bridges_), "bridge": self.bridge}
        (folder / "ensemble.json").write_text(json.dumps(document), encoding="utf-8")
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> GalleryEnsemble:
        path = Path(folder) / "ensemble.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["format"] != FORMAT:
                raise ValueError(f"format is {document['format']!r}")
            made, members = cls(bridge=document["bridge"]), int(document["members"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path}: not an ensemble ({error})") from error
        made.bridges_ = [load_bridge(Path(folder) / f"gallery-{place}") for place in range(members)]
        if not made.bridges_:
            raise FormatError(f"{path}: the ensemble is empty")
        made._query = made.bridges_[0].target
        for bridge in made.bridges_:
            if not bridge.target.same_as(made._query):
                raise FormatError(
                    f"{folder}: its bridges lead to {made._query} and to {bridge.target}; "
                    "an ensemble has one query space"
                )
        return made

    def _bridge_of(self, space: Space) -> Bridge:
        for bridge in self.bridges_:
            if bridge.source.same_as(space):
                return bridge
        known = ", ".join(str(bridge.source) for bridge in self.bridges_) or "none"
        raise SpaceMismatch(f"{space} is not in this ensemble; it holds {known}")


def disagreement(mean: Float64, views: Float64) -> FloatArray:
    """(N,) mean squared distance over all pairs of the N unit vectors behind each mean.

    U = 2N/(N-1)·(1 - ‖mean‖²): no pair has to be formed, and one float an item can be stored.
    One view has no disagreement to measure: NaN, never 0.
    """
    spread = 1.0 - np.einsum("nd,nd->n", mean, mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(views > 1, 2.0 * views / (views - 1.0), np.nan)
    result: FloatArray = (factor * np.maximum(spread, 0.0)).astype(np.float32)
    return result


def _columns(ids: Any, first: Any, galleries: Sequence[Embeddings]) -> dict[str, Any]:
    """Columns that every set has, taken from the first set that knows the item."""
    shared = set.intersection(*(set(gallery.columns) for gallery in galleries))
    columns = {}
    for name in sorted(shared - {"uncertainty"}):
        parts = [gallery.columns[name] for gallery in galleries]
        merged = np.zeros((len(ids), *parts[0].shape[1:]), dtype=np.result_type(*parts))
        for place, gallery in enumerate(galleries):
            rows = np.searchsorted(ids, gallery.ids)
            mine = first[rows] == place
            merged[rows[mine]] = gallery.columns[name][mine]
        columns[name] = merged
    return columns
