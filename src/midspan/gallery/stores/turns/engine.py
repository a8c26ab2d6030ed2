"""What a store that takes turns asks of its engine: rows in collections, and one compare-and-set.

An engine has no transactions. head.py says how a write still happens at one moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from midspan.errors import StoreError
from midspan.gallery.filters import Filter
from midspan.spaces import FloatArray, Metric, Space

if TYPE_CHECKING:
    from midspan.gallery.stores.turns.access import Access
    from midspan.gallery.stores.turns.conditions import Condition
    from midspan.gallery.stores.turns.head import Head

MOST = 16_384  # rows of one answer, neighbours of one search: what Milvus gives at the most

Row = dict[str, Any]
Beat = Callable[[], None]


class Refused(StoreError):
    """The engine answered, and said no."""


class Gone(Refused):
    """There is no such collection."""


@dataclass(frozen=True, slots=True)
class Sought:
    vectors: Sequence[FloatArray]
    where: Sequence[Condition]
    metric: Metric
    limit: int
    index: Mapping[str, Any] | None  # what was recorded of an approximate index that we built
    exact: bool
    time: int  # see Engine.now


class Engine(Protocol):
    word: ClassVar[str]  # "Milvus", for messages
    shown: str  # the location without secrets
    name: str  # of the gallery
    lease: float  # seconds after which a silent writer is thought dead
    settings: Mapping[str, str]  # of the collections; recorded when the gallery is made

    def __init__(self, location: str) -> None: ...

    def close(self) -> None: ...

    def adopt(self, settings: Mapping[str, str]) -> None:
        """Go on with what the gallery was made with."""
        ...

    # ---- the head

    def head(self) -> Head | None: ...

    def swap(self, before: Head, after: Head) -> bool:
        """Put one head in place of another; False if that is no longer the present one."""
        ...

    def begin(self, head: Head) -> bool:
        """The first head; False if there is one. Until then there is no gallery."""
        ...

    def now(self) -> int:
        """Later than all that was acknowledged so far; what a read must wait for."""
        ...

    def clock(self) -> float:
        """Seconds since 1970, by the server's clock if it can be asked."""
        ...

    # ---- rows

    def query(
        self,
        collection: str,
        where: Sequence[Condition],
        fields: Sequence[str],
        *,
        time: int,
        limit: int = 0,
    ) -> list[Row]:
        """All, or with `limit` the first; with an `After` in the order of the keys."""
        ...

    def count(self, collection: str, where: Sequence[Condition], *, time: int) -> int: ...

    def search(self, collection: str, sought: Sought) -> list[list[Row]]:
        """(pk, distance, row, vector) of the nearest for each query vector.

        distance: cosine or product, the larger the nearer; for l2 its square, the smaller the
        nearer.
        """
        ...

    def insert(self, collection: str, rows: Iterable[Row], *, beat: Beat) -> None:
        """Records, in portions; `beat` is called after each."""
        ...

    def insert_vectors(
        self, collection: str, rows: Iterable[Row], *, metric: Metric, beat: Beat
    ) -> None:
        """(pk, row, vector)."""
        ...

    def delete(self, collection: str, keys: Sequence[str | int]) -> None: ...

    def condition(self, filter: Filter) -> tuple[bool, bool]:
        """(whether it can tell something of this filter, whether it can tell all).

        Of `plain` payloads only: the others always pass and are looked at here.
        """
        ...

    def plain(self, payload: Mapping[str, Any], size: int) -> bool:
        """Whether the engine, asked about this payload (bytes of JSON), means what we mean."""
        ...

    # ---- collections

    def make_records(self, name: str) -> None: ...

    def make_vectors(self, name: str, space: Space) -> None: ...

    def oversampling(self, index: Mapping[str, Any] | None) -> float:
        """Candidates to ask for, for each neighbour that is wanted."""
        ...

    def wait_until_loaded(self, name: str, *, beat: Beat) -> None: ...

    def collections(self) -> list[str]: ...

    def age(self, collection: str) -> float:
        """Seconds since it was made, as far as that can be known; 0 if not."""
        ...

    def drop(self, collection: str) -> None: ...

    def upkeep(self, access: Access) -> None:
        """Indexes, as far as the engine does not build them by itself."""
        ...
