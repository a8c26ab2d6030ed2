"""Which table or collection of an application a gallery reads in place, and which parts of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

SETTING = "adopted"  # the catalogue's setting that holds a binding


@dataclass(frozen=True, slots=True)
class VectorIndex:
    """An index of the application that searches use."""

    name: str
    method: str  # hnsw, ivfflat
    kind: str  # vector or halfvec: what it holds
    whole: bool  # False: it is still being built, or a build failed


@dataclass(frozen=True, slots=True)
class FormerColumn:
    """The application's column before a hand-over."""

    column: str
    not_null: bool


@dataclass(frozen=True, slots=True)
class TableBinding:
    """A table in PostgreSQL. `columns` are its vector columns by the number of their space."""

    schema: str
    table: str
    id: str
    id_type: str  # as PostgreSQL writes it: bigint, text, uuid
    vector: str  # the column that the application reads and writes
    vector_type: str  # vector or halfvec
    uri: str | None = None
    payload: tuple[str, ...] = ()
    columns: Mapping[int, str] = field(default_factory=dict)
    former: FormerColumn | None = None  # after a hand-over, until `forget`

    @property
    def relation(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table)}"

    @property
    def shown(self) -> str:
        return f"table {self.table}" if self.schema == "public" else f"{self.schema}.{self.table}"

    @property
    def number(self) -> int | None:
        """Of the space that the application's column holds; None if the gallery forgot it."""
        return next((one for one, column in self.columns.items() if column == self.vector), None)

    def with_columns(self, columns: Mapping[int, str]) -> Self:
        return replace(self, columns=dict(columns))

    def to_json(self) -> str:
        values = asdict(self)
        values["columns"] = {str(number): column for number, column in self.columns.items()}
        return json.dumps(values, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        raw: dict[str, Any] = json.loads(text)
        raw["payload"] = tuple(raw["payload"])
        raw["columns"] = {int(number): column for number, column in raw["columns"].items()}
        raw["former"] = None if raw["former"] is None else FormerColumn(**raw["former"])
        return cls(**raw)


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text in SQL (standard_conforming_strings)."""
    return "'" + text.replace("'", "''") + "'"
