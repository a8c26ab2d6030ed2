"""A test double: the memory engine behind a location with a catalogue of its own.

It stands for every engine that is not in the catalogue's database, survives the closing of a
gallery, and can be made to fail at any step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from midspan.errors import GalleryError, StoreError
from midspan.gallery.engines.memory import MemoryEngine
from midspan.spaces import FloatArray, IntArray

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from midspan.gallery.catalogue.catalogue import Catalogue
    from midspan.gallery.location import Location

SCHEME = "milvus+lite"  # whose place it takes: see conftest
KEPT: dict[str, Elsewhere] = {}


class Elsewhere(MemoryEngine):
    def __init__(self) -> None:
        super().__init__()
        self.fail_at: str | None = None
        self.before_put: Callable[[], object] | None = None

    @classmethod
    def open(cls, location: Location, catalogue: Catalogue) -> Self:
        return KEPT[location.name]  # type: ignore[return-value]

    @classmethod
    def create(cls, location: Location, catalogue: Catalogue) -> Self:
        if location.name in KEPT:
            raise GalleryError(f"there is something at {location.shown} already")
        made = cls()
        KEPT[location.name] = made
        return made

    def close(self) -> None:
        """The server goes on."""

    def _check(self, step: str) -> None:
        if self.fail_at == step:
            raise StoreError(f"the engine fails at {step}")

    def put(
        self,
        number: int,
        rows: IntArray,
        vectors: FloatArray,
        *,
        payloads: Sequence[str] | None = None,
        connection: Connection | None = None,
    ) -> None:
        if self.before_put is not None:
            hook, self.before_put = self.before_put, None
            hook()
        super().put(number, rows, vectors, payloads=payloads)
        self._check("put")  # when the vectors are there already: the worst moment

    def delete(self, rows: IntArray, *, connection: Connection | None = None) -> None:
        self._check("delete")
        super().delete(rows)

    def set_payload(self, payloads: object) -> None:
        self._check("set_payload")
        super().set_payload(payloads)  # type: ignore[arg-type]

    def drop_space(self, number: int, *, connection: Connection | None = None) -> None:
        self._check("drop_space")
        super().drop_space(number)
