"""What every bridge is: fitted on pairs, applied with NumPy, saved without pickle."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from midspan.errors import RunError, SpaceMismatch, VectorError
from midspan.labels import ClassNames
from midspan.spaces import Embeddings, FloatArray, IntArray, Space

if TYPE_CHECKING:
    from midspan.bridges.onnx_export import Graph

Float64 = npt.NDArray[np.float64]
Known = TypeVar("Known")

TINY = 1e-12  # below any norm of a real vector; keeps 0/0 away
BLOCK = 8192  # rows mapped at a time, so that a large gallery costs little memory


def unit(vectors: FloatArray) -> FloatArray:
    """Rows of length one; a zero row stays zero. One vector (D,) goes a shorter way."""
    if vectors.ndim == 1:
        length: float = vectors.dot(vectors)
        one: FloatArray = vectors * (1.0 / max(math.sqrt(length), TINY))
        return one
    norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    rows: FloatArray = vectors / np.maximum(norms, TINY)[:, None]
    return rows


def prepared(vectors: FloatArray, space: Space) -> Float64:
    """Float64 for the solvers; unit rows where only the direction counts."""
    rows = vectors.astype(np.float64)
    if space.metric == "cosine":
        squared = np.einsum("nd,nd->n", rows, rows)
        if np.abs(squared - 1.0).max(initial=0.0) > 1e-6:  # else unit already, to float32
            rows *= 1.0 / np.sqrt(squared)[:, None]
    return rows


@dataclass(frozen=True, slots=True)
class Pairs:
    """The same items in two spaces, row by row."""

    source: Embeddings
    target: Embeddings
    _known: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, source: Embeddings, target: Embeddings) -> Pairs:
        if source.space.same_as(target.space):
            raise SpaceMismatch(
                f"both sets are in {source.space}: there is nothing to bridge; "
                "give the vectors of two encoders"
            )
        if np.array_equal(source.ids, target.ids):
            return cls(source, target)
        return cls(*source.paired_with(target))

    def __len__(self) -> int:
        return len(self.source)

    def x(self, rows: slice | IntArray = slice(None)) -> Float64:  # (N, Ds)
        return prepared(self.source.vectors[rows], self.source.space)

    def y(self, rows: slice | IntArray = slice(None)) -> Float64:  # (N, Dt)
        return prepared(self.target.vectors[rows], self.target.space)

    @property
    def labels(self) -> IntArray | None:
        """(N,) the class of each pair as a number of this fit; None if neither side has labels."""
        sides = [side for side in (self.source, self.target) if side.labels is not None]
        if not sides:
            return None
        named = min(sides, key=lambda side: side.numbered)  # names are better than old numbers
        assert named.labels is not None
        return ClassNames.of(named.labels).encode(named.labels)

    def shared(self, key: Any, make: Callable[[], Known]) -> Known:
        """What several bridges need of these very pairs, made by the first of them."""
        if key not in self._known:
            self._known[key] = make()
        value: Known = self._known[key]
        return value

    def part(self, rows: IntArray) -> Pairs:
        return Pairs(self.source[rows], self.target[rows])


@dataclass(frozen=True, slots=True)
class Fold:
    """Pairs of which some are left out, and the rows among these that are to be mapped."""

    pairs: Pairs
    left_out: IntArray  # ascending
    rows: IntArray
    _made: list[Pairs] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def kept(self) -> Pairs:
        """The other pairs; made once, so that bridges share what they have in common of them."""
        if not self._made:
            others = np.setdiff1d(np.arange(len(self.pairs)), self.left_out)
            self._made.append(self.pairs.part(others))
        return self._made[0]

    @property
    def places(self) -> IntArray:
        """Where the rows are among those that are left out."""
        return np.searchsorted(self.left_out, self.rows)

    def __len__(self) -> int:
        return len(self.pairs) - len(self.left_out)


class Bridge(ABC):
    """A map from `source` to `target` space.

    A bridge writes `__init__` (keyword-only settings, kept under their own names), `_fit`, which
    sets names that end in `_` (arrays, plain values or further bridges: these are what is saved),
    and `_map` on float32 rows. Everything else is here.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> rng = np.random.default_rng(0)
        >>> ids = np.arange(300).astype(str)
        >>> old = ms.Embeddings(ids, rng.normal(size=(300, 4)), ms.Space("old", 4))
        >>> new = ms.Embeddings(ids, old.vectors @ rng.normal(size=(4, 6)), ms.Space("new", 6))
        >>> bridge = ms.fit_bridge(old, new)
        >>> isinstance(bridge, ms.bridges.Bridge), bridge.source.name, bridge.target.name
        (True, 'old', 'new')
    """

    name: ClassVar[str]  # its key in BRIDGES

    _source: Space | None = None
    _target: Space | None = None
    n_pairs_: int

    # ---- what a bridge fills in -----------------------------------------------------------------

    @abstractmethod
    def _fit(self, pairs: Pairs) -> None: ...

    @abstractmethod
    def _map(self, rows: FloatArray) -> FloatArray:
        """(N, Ds) → (N, Dt), before normalisation; `rows` have unit length in a cosine space."""

    @abstractmethod
    def _graph(self, graph: Graph, rows: str) -> str:
        """The same as `_map` in ONNX operators: name of the input → name of the output."""

    def pairs_needed(self, source_dim: int, target_dim: int) -> int:
        """The fewest pairs that `fit` takes."""
        return 8

    # ---- what every bridge does -----------------------------------------------------------------

    def fit(self, source: Embeddings, target: Embeddings) -> Self:
        """Learn the map from the items that both sets hold; pairs are found by id."""
        return self.fit_pairs(Pairs.of(source, target))

    def fit_pairs(self, pairs: Pairs) -> Self:
        """As `fit`; bridges that are fitted on the same `Pairs` share what they have in common."""
        source, target = pairs.source.space, pairs.target.space
        needed = self.pairs_needed(source.dim, target.dim)
        if len(pairs) < needed:
            raise VectorError(
                f"{len(pairs)} pairs for a map from {source.dim} to {target.dim} dims; "
                f"{self.name} with these settings needs at least {needed}: embed "
                f"{needed - len(pairs)} more items with both encoders{self._instead()}"
            )
        self._source, self._target = source, target
        self.n_pairs_ = len(pairs)
        key = (type(self), repr(self.settings()))
        vars(self).update(pairs.shared(key, lambda: self._learnt(pairs)))
        return self

    def map_left_out(self, fold: Fold) -> FloatArray:
        """(R, Dt) the fold's rows, as the fit without the fold maps them.

        A bridge that can say so from its fit on all pairs does not fit again.
        """
        return self.fit_pairs(fold.kept).transform(fold.pairs.source[fold.rows]).vectors

    def _as_applied(self, mapped: Float64, target: Space) -> FloatArray:
        rows: FloatArray = mapped.astype(np.float32)
        return unit(rows) if target.metric == "cosine" else rows

    def _learnt(self, pairs: Pairs) -> Mapping[str, Any]:
        self._fit(pairs)
        return self.fitted()

    def _instead(self) -> str:
        """What else could be done with too few pairs; ends the error message."""
        return ""

    @property
    def source(self) -> Space:
        if self._source is None:
            raise RunError(f"this {self.name} bridge is not fitted yet; call fit(source, target)")
        return self._source

    @property
    def target(self) -> Space:
        if self._target is None:
            raise RunError(f"this {self.name} bridge is not fitted yet; call fit(source, target)")
        return self._target

    def transform(self, embeddings: Embeddings) -> Embeddings:
        """The same items, ids and columns, with vectors in the target space."""
        self.check_source(embeddings.space)
        mapped = np.empty((len(embeddings), self.target.dim), dtype=np.float32)
        for start in range(0, len(embeddings), BLOCK):
            rows = slice(start, start + BLOCK)
            mapped[rows] = self._apply_rows(embeddings, rows)
        return replace(embeddings, vectors=mapped, space=self.target)

    def _apply_rows(self, embeddings: Embeddings, rows: slice) -> FloatArray:
        return self.apply(embeddings.vectors[rows])

    def apply(self, vectors: FloatArray) -> FloatArray:
        """(N, Ds) → (N, Dt), or one vector (Ds,) → (Dt,), float32: the fast way, arrays only."""
        mapped = self.unnormalised(vectors)
        return unit(mapped) if self.target.metric == "cosine" else mapped

    def unnormalised(self, vectors: FloatArray) -> FloatArray:
        """As `apply`, before the last normalisation; its length indicates how well it fits."""
        source = self.source
        if vectors.shape[-1] != source.dim:
            raise VectorError(
                f"vectors have shape {vectors.shape}; this bridge maps from {source}, "
                f"so the last dim must be {source.dim}"
            )
        return self._map(unit(vectors) if source.metric == "cosine" else vectors)

    def check_source(self, space: Space) -> None:
        if space.same_as(self.source):
            return
        if space.same_as(self.target):
            raise SpaceMismatch(
                f"the spaces are swapped: expected vectors in {self.source}, got vectors in "
                f"{space}, the target of this bridge. They need no mapping; for the other "
                "direction fit a bridge with fit(target, source)"
            )
        raise SpaceMismatch(
            f"expected vectors in {self.source}, got vectors in {space}; this bridge leads to "
            f"{self.target}: use the bridge that was fitted for this encoder"
        )

    def probe(self) -> FloatArray:
        """One made-up vector through the map, (1, Dt): a loaded bridge is tried out with it."""
        return self.apply(np.full((1, self.source.dim), 1.0 / self.source.dim, dtype=np.float32))

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments, by name."""
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names}

    def clone(self) -> Self:
        """The same settings, not fitted."""
        return type(self)(**self.settings())

    def fitted(self) -> Mapping[str, Any]:
        """What `fit` learnt: every attribute whose name ends in one underscore."""
        return {
            name: value
            for name, value in sorted(vars(self).items())
            if name.endswith("_") and not name.startswith("_")
        }

    def save(self, folder: str | Path) -> Path:
        """Write `bridge.json` and its arrays into this folder, in place of a former bridge."""
        from midspan.bridges.files import save_bridge

        return save_bridge(self, folder)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
        if self._source is None or self._target is None:
            return f"{type(self).__name__}({given})"
        fitted = f"{self._source.name} → {self._target.name}, {self.n_pairs_:,} pairs"
        return f"{type(self).__name__}({'; '.join(filter(None, (given, fitted)))})"
