"""The catalogue's tables, for SQLite (plain names) and PostgreSQL (names with a prefix).

A *row* is the number of one revision of one item, a *number* that of a space. Neither is ever given
again, so what an engine holds under a number that the catalogue does not know is garbage.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    Table,
    Text,
    cast,
    false,
    quoted_name,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import UserDefinedType

Dialect = Literal["sqlite", "postgresql"]

BIG = BigInteger().with_variant(Integer(), "sqlite")


class JsonbText(UserDefinedType[str]):
    """JSONB whose Python side is the JSON text: we parse it ourselves."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "JSONB"

    def bind_expression(self, bindvalue: Any) -> ColumnElement[str]:
        return cast(bindvalue, JSONB)

    def column_expression(self, colexpr: Any) -> ColumnElement[str]:
        return cast(colexpr, Text)


def _row(**settings: Any) -> Column[int]:
    return Column(quoted_name("row", True), BIG, nullable=False, **settings)


class Tables:
    def __init__(self, dialect: Dialect, *, prefix: str = "") -> None:
        self.dialect, self.prefix = dialect, prefix
        self.metadata = metadata = MetaData()
        postgres = dialect == "postgresql"
        words = Text(collation="C") if postgres else Text()

        def number(name: str, default: int = 0) -> Column[int]:
            return Column(name, BIG, nullable=False, server_default=text(str(default)))

        self.gallery = Table(
            f"{prefix}gallery",
            metadata,
            Column("one", Integer, CheckConstraint("one = 1"), primary_key=True),
            number("version"),
            Column("live", Text, nullable=False),  # JSON: fingerprints, best first
            Column("target", Text),
            Column("upgrade", Text),  # JSON
            Column("settings", Text, nullable=False, server_default="{}"),  # JSON
            number("next_space", 1),
            number("next_row", 1),  # SQLite; PostgreSQL has sequences, which never wait
            number("sequence"),
        )
        self.spaces = Table(
            f"{prefix}spaces",
            metadata,
            Column("number", BIG, primary_key=True, autoincrement=False),
            Column("fingerprint", Text, nullable=False, unique=True),
            Column("json", Text, nullable=False),
            Column("index_failure", Text),
            Column("index_failed_at", Double),
            number("index_attempts"),
        )
        self.items = Table(
            f"{prefix}items",
            metadata,
            _row(primary_key=True, autoincrement=False),
            Column("id", words, nullable=False, unique=True),
            Column("uri", Text),
            Column("payload", JsonbText() if postgres else Text(), nullable=False),
            Column("revision", BIG, nullable=False),
            Column("created", Double, nullable=False),
            Column("changed", Double, nullable=False),
            Column("sequence", BIG, nullable=False),
        )
        if not postgres:  # for the filters that the embedded engine remembers
            Index("items_sequence", self.items.c.sequence)
        self.stored = Table(
            f"{prefix}stored",
            metadata,
            Column("space", BIG, primary_key=True, autoincrement=False),
            _row(primary_key=True, autoincrement=False),
            sqlite_with_rowid=False,
        )
        self.work = Table(
            f"{prefix}work",
            metadata,
            _row(primary_key=True, autoincrement=False),
            Column("priority", Double, nullable=False, server_default=text("0")),
            Column("due", Double, nullable=False, server_default=text("0")),
            Column("worker", Text),
            Column("attempts", Integer, nullable=False, server_default=text("0")),
            Column("failed", Boolean, nullable=False, server_default=false()),
            Column("reason", Text, nullable=False, server_default=""),
            Column("moment", Double, nullable=False, server_default=text("0")),
        )
        work = self.work.c
        Index(
            f"{prefix}work_next",
            work.priority.desc(),
            work.row,
            postgresql_where=work.failed == false(),
            sqlite_where=work.failed == false(),
        )
        Index(
            f"{prefix}work_worker",
            work.worker,
            postgresql_where=work.worker.is_not(None),
            sqlite_where=work.worker.is_not(None),
        )
        Index(
            f"{prefix}work_failed",
            work.row,
            postgresql_where=work.failed == true(),
            sqlite_where=work.failed == true(),
        )
        self.audit = Table(
            f"{prefix}audit",
            metadata,
            Column("line", BIG, primary_key=True, autoincrement=True),
            Column("moment", Double, nullable=False),
            Column("who", Text, nullable=False),
            Column("what", Text, nullable=False),
            Column("details", Text, nullable=False),  # JSON
            sqlite_autoincrement=True,
        )
        Index(f"{prefix}audit_what", self.audit.c.what)
        self.blobs = Table(
            f"{prefix}blobs",
            metadata,
            Column("digest", Text, primary_key=True),
            Column("kind", Text, nullable=False),
            Column("bytes", LargeBinary, nullable=False),
        )
        self.outbox = Table(
            f"{prefix}outbox",
            metadata,
            Column("sequence", BIG, primary_key=True, autoincrement=True),
            Column("kind", Text, nullable=False),  # intent, delete, payload; space, drop
            _row(),  # for space and drop: the number of the space
            Column("due", Double, nullable=False),
            sqlite_autoincrement=True,  # a number given again could be removed for the former
        )
        Index(f"{prefix}outbox_row", self.outbox.c.row)
        Index(f"{prefix}outbox_due", self.outbox.c.due)
        if postgres:
            self.row_numbers = Sequence(f"{prefix}row_numbers", metadata=metadata)
            self.sequence = Sequence(f"{prefix}sequence", metadata=metadata)


@functools.lru_cache(maxsize=64)
def tables_of(dialect: Dialect, prefix: str) -> Tables:
    """All galleries with these names share the description: making it takes longer than opening
    the file. Nothing changes it."""
    return Tables(dialect, prefix=prefix)
