"""The contract between a gallery and the engine that holds and searches its vectors.

A catalogue (SQL) knows which items exist; an engine keeps vectors by *row*. A row is a number that
the catalogue gives to one revision of one item and never gives again: replacing an item gives it a
new row. So every engine operation is idempotent and needs no transaction:

- a row that the catalogue does not know (a write that was aborted, a late worker) is garbage: the
  gallery drops it from every answer, and `Gallery.optimise` removes it;
- a row whose item has a vector in a better space is *superseded*: it is left in place, so that a
  rollback only changes the preference list that searches pass.

An engine whose vectors live in the catalogue's own database (`colocated`) gets the catalogue's
open transaction as `connection` and writes in it; the others ignore it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, Self, runtime_checkable

import numpy as np

from midspan.gallery.filters import Filter, Path
from midspan.spaces import FloatArray, IntArray, Metric, Space

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from midspan.gallery.catalogue.catalogue import Catalogue
    from midspan.gallery.location import Location


IndexState = Literal["none", "building", "ready", "failed"]  # none: too small to need one


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The k best rows for each of (Q, D) vectors.

    `live` is a preference list of space numbers, best first. A row counts in a space only if it
    has no vector in a space that stands before it in `live`. Only the spaces `among` (some of
    `live`, of one dimension and metric) are searched.
    """

    vectors: FloatArray  # (Q, D)
    k: int
    live: tuple[int, ...]
    among: tuple[int, ...]
    filter: Filter | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Candidates:
    """What one query found, by falling score; a row appears once, in its best space.

    Scores are `pair_scores` of the float32 vectors: the same in every engine. All rows whose
    score equals the k-th are included. `complete` is True if no other row passes the request, so
    that asking for more is of no use. Otherwise there may be fewer than k, and no other row scores
    above `bound`, or above the last of these where it is None.
    """

    rows: IntArray  # (n,)
    spaces: IntArray  # (n,) space numbers
    scores: FloatArray  # (n,) float32
    complete: bool
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """The index of one space: rows, kind and state."""

    rows: int  # vectors of the space that the engine holds
    kind: str  # "flat", "ivf", "hnsw", …
    state: IndexState
    unindexed: int = 0  # rows that searches compare one by one
    recall: float | None = None  # measured recall@10, where known
    failure: str | None = None  # of the last build
    failed_at: float | None = None  # seconds since 1970


class Engine(Protocol):
    colocated: bool  # vectors are in the catalogue's database: written in its transactions
    recorded: Mapping[str, str]  # settings of the location that shape what is stored

    @classmethod
    def open(cls, location: Location, catalogue: Catalogue) -> Self: ...

    @classmethod
    def create(cls, location: Location, catalogue: Catalogue) -> Self:
        """For a new gallery: refuses what an earlier one left there. `create_space` comes next."""
        ...

    def close(self) -> None: ...

    # ---- spaces; `number` is the catalogue's number of a space and is never used again

    def create_space(
        self, number: int, space: Space, *, connection: Connection | None = None
    ) -> None:
        """Prepare storage for vectors of this space; does nothing if it exists."""
        ...

    def drop_space(self, number: int, *, connection: Connection | None = None) -> None:
        """Remove the space with all its vectors and its index at once (a DROP, not deletes)."""
        ...

    # ---- vectors

    def put(
        self,
        number: int,
        rows: IntArray,
        vectors: FloatArray,
        *,
        payloads: Sequence[str] | None = None,
        connection: Connection | None = None,
    ) -> None:
        """Store (N, D) vectors under these rows; a row that is there already is overwritten.

        payloads: each row's JSON text, for engines that filter by themselves (not colocated).
        Durable when it returns (colocated: when the transaction commits).
        """
        ...

    def delete(self, rows: IntArray, *, connection: Connection | None = None) -> None:
        """Remove these rows from every space; unknown rows are passed over."""
        ...

    def supersede(self, number: int, rows: IntArray, *, by: int) -> None:
        """These rows of `number` now have a vector in `by`. A hint that may be ignored or lost."""
        ...

    def set_payload(self, payloads: Mapping[int, str]) -> None:
        """JSON texts by row, in every space; colocated engines do nothing."""
        ...

    def fetch(self, number: int, rows: IntArray) -> tuple[IntArray, FloatArray]:
        """(rows that are there, in the order asked for; their vectors)."""
        ...

    def rows(self, number: int, *, after: int, limit: int) -> IntArray:
        """The next rows of a space by rising number: for verification and vacuum."""
        ...

    def count(self, number: int) -> int: ...

    def search(self, request: SearchRequest) -> list[Candidates]:
        """With a filter: the k best that pass, or all there are. Never fewer by accident."""
        ...

    # ---- index

    def needs_index(self, number: int) -> bool:
        """The space has grown past the size where an index pays, and has none that is valid."""
        ...

    def build_index(self, number: int) -> None:
        """Build or complete the index and wait for it; searches and writes continue meanwhile.

        Raises StoreError if it fails. Safe to call from several processes at once: one builds.
        """
        ...

    def index_status(self, number: int) -> IndexStatus: ...

    def vacuum(self) -> None:
        """Return disk and memory of what was deleted or dropped; may take long."""
        ...


@runtime_checkable
class IndexesPayloads(Protocol):
    """An engine that filters by itself and can index a field of the payload for that."""

    def index_payload(self, path: Path) -> None: ...


@runtime_checkable
class Adopts(Protocol):
    """An engine that can read vectors of an application in place, in its table or collection."""

    @property
    def owner(self) -> str | None:
        """Whose items the gallery shows ("table products"); None: they are its own."""
        ...

    @property
    def written_space(self) -> int | None:
        """The number of the space whose vectors the application writes."""
        ...

    def catch_up(self) -> int:
        """Apply what the application wrote and nobody noted yet; how many items changed."""
        ...


# ---- one score for one pair of vectors, whatever engine found the candidate ----------------------


def prepare(vectors: FloatArray, *, metric: Metric) -> FloatArray:
    """(N, D) as they are compared: of unit length for cosine, as they are otherwise."""
    if metric != "cosine":
        return np.ascontiguousarray(vectors, dtype=np.float32)
    wide = vectors.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    units: FloatArray = (wide / lengths).astype(np.float32)
    return units


def pair_scores(query: FloatArray, rows: FloatArray, *, metric: Metric) -> FloatArray:
    """(N,) scores of one prepared query (D,) with prepared rows (N, D); or of (Q, 1, D), (Q, N, D).

    Sums run over the last axis, which is contiguous: in the same order whatever stands before it.
    """
    wide = rows.astype(np.float64)
    if metric == "l2":
        wide -= query
        scores = -np.add.reduce(wide * wide, axis=-1)
    else:
        wide *= query  # in float64, which holds each product of float32 exactly
        scores = np.add.reduce(wide, axis=-1)
    rounded: FloatArray = scores.astype(np.float32)
    return rounded
