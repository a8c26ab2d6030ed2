"""Filters as SQL over items.payload, for both dialects. Values travel as parameters.

Paths are written into the text (quoted), so that an index on the same expression can be used: see
`index_expressions`. A condition is true, or false or NULL; under `Not` it is made false, so that
NOT means not.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Text,
    and_,
    case,
    cast,
    collate,
    false,
    func,
    literal,
    literal_column,
    not_,
    or_,
    true,
    type_coerce,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import JSONB

from midspan.gallery.catalogue.postgresql import Postgresql
from midspan.gallery.catalogue.tables import Tables
from midspan.gallery.filters import And, Eq, Exists, Filter, In, Not, Or, Path, Scalar
from midspan.gallery.records import AuditEvent

if TYPE_CHECKING:
    from midspan.gallery.catalogue.catalogue import Catalogue

Condition = ColumnElement[bool]

PREFIX = 256  # characters of a text that an index on it holds


def where(filter: Filter | None, tables: Tables) -> Condition:
    if filter is None:
        return true()
    if isinstance(filter, And):
        return and_(*(where(part, tables) for part in filter.parts))
    if isinstance(filter, Or):
        return or_(*(where(part, tables) for part in filter.parts))
    if isinstance(filter, Not):
        return not_(func.coalesce(where(filter.part, tables), false()))
    assert isinstance(filter.path, tuple)
    values = _Postgres if tables.dialect == "postgresql" else _Sqlite
    at = values(tables, filter.path)
    if isinstance(filter, Exists):
        return at.exists()
    if isinstance(filter, Eq):
        return at.equals(filter.value)
    if isinstance(filter, In):
        return or_(false(), *(at.equals(value) for value in filter.values))
    return and_(*(at.compares(operator, bound) for operator, bound in filter.bounds))


def index_expressions(path: Path, tables: Tables) -> dict[str, ColumnElement[Any]]:
    """What indexes on a payload field hold in PostgreSQL, by a letter: what filters compare."""
    at = _Postgres(tables, path)
    return {"e": at.value, "n": at.number, "t": at.prefix}


class _Sqlite:
    def __init__(self, tables: Tables, path: Path) -> None:
        text = "$" + "".join(f'."{part}"' for part in path)
        payload = tables.items.c.payload
        self.kind = func.json_type(payload, _inline(text))
        self.value = func.json_extract(payload, _inline(text))

    def exists(self) -> Condition:
        return self.kind.is_not(None)

    def equals(self, value: Scalar) -> Condition:
        if value is None or isinstance(value, bool):
            return self.kind == {None: "null", True: "true", False: "false"}[value]
        return self.compares("=", value)

    def compares(self, operator: str, bound: str | float) -> Condition:
        kinds = ("text",) if isinstance(bound, str) else ("integer", "real")
        compared: Condition = self.value.op(operator, is_comparison=True)(literal(bound))
        return and_(self.kind.in_(kinds), compared)


class _Postgres:
    """Texts of any length may be stored, which a B-tree cannot hold: it holds their beginning."""

    def __init__(self, tables: Tables, path: Path) -> None:
        value: ColumnElement[Any] = type_coerce(tables.items.c.payload, _RAW)
        for part in path:
            value = value.op("->", return_type=_RAW)(_inline(part))
        self.value = value
        kind = func.jsonb_typeof(value)
        self.number = case((kind == _inline("number"), value))
        # jsonb itself compares texts by the database's collation
        plain = value.op("#>>", return_type=Text())(literal_column("'{}'"))
        self.text = collate(case((kind == _inline("string"), plain)), "C")
        self.prefix = collate(func.left(self.text, literal_column(str(PREFIX))), "C")

    def exists(self) -> Condition:
        return self.value.is_not(None)

    def equals(self, value: Scalar) -> Condition:
        return self.value == _jsonb(value)  # of one kind, and 1 = 1.0

    def compares(self, operator: str, bound: str | float) -> Condition:
        if not isinstance(bound, str):
            ordered: Condition = self.number.op(operator, is_comparison=True)(_jsonb(bound))
            return ordered
        loose = operator if operator.endswith("=") else f"{operator}="
        beginning = self.prefix.op(loose, is_comparison=True)(literal(bound[:PREFIX], Text()))
        return and_(beginning, self.text.op(operator, is_comparison=True)(literal(bound, Text())))


_RAW = JSONB()


def _jsonb(value: Scalar) -> ColumnElement[Any]:
    text = literal(json.dumps(value, ensure_ascii=False), Text())
    return cast(text, JSONB)


def _inline(text: str) -> ColumnElement[str]:
    return literal(text, Text(), literal_execute=True)


# ---- indexes on fields of the payload, for filters that few items pass. PostgreSQL only here -----
# SQLite before 3.41 refuses json_extract in an index of a file that it does not trust
# (PRAGMA trusted_schema = OFF): a file with such an index could not be written there any more.

SETTING = "payload_indexes"  # JSON: the paths


def index_payload(catalogue: Catalogue, path: Path) -> None:
    """Build it while others read and write; nothing happens if it is there."""
    tables = catalogue.tables
    assert isinstance(catalogue.database, Postgresql)
    digest = hashlib.sha256(json.dumps(path).encode()).hexdigest()[:8]
    for letter, expression in index_expressions(path, tables).items():
        name = f"{tables.prefix}p{digest}_{letter}"
        method = "USING hash" if letter == "e" else ""
        _build(catalogue.database, name, f"{method} (({_sql(expression)}))", tables.items.name)


def note_path(catalogue: Catalogue, path: Path, *, event: AuditEvent) -> None:
    """So that an engine gives the index to spaces that come later."""
    known = indexed_paths(catalogue)
    if path not in known:
        value = json.dumps([*known, path], ensure_ascii=False)
        catalogue.set_setting(SETTING, value, event=event)


def indexed_paths(catalogue: Catalogue) -> list[Path]:
    return [tuple(path) for path in json.loads(catalogue.settings().get(SETTING, "[]"))]


def _sql(expression: ColumnElement[Any]) -> str:
    """The expression as an index may hold it: without the table's name, with its constants."""
    dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]
    compiler = dialect.statement_compiler(dialect, None)
    return str(compiler.process(expression, include_table=False, literal_binds=True))


def _build(database: Postgresql, name: str, definition: str, table: str) -> None:
    broken = database.ask(
        "SELECT 1 FROM pg_index WHERE NOT indisvalid AND indexrelid = to_regclass(%s)",
        (f'"{name}"',),
    )
    with database.autocommit() as connection:
        if broken:  # an attempt that was interrupted
            connection.exec_driver_sql(f'DROP INDEX CONCURRENTLY "{name}"')
        connection.exec_driver_sql(
            f'CREATE INDEX CONCURRENTLY IF NOT EXISTS "{name}" ON "{table}" {definition}'
        )
        connection.exec_driver_sql(f'ANALYZE "{table}"')
