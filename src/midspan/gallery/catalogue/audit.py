"""Small tables of the catalogue: the audit log, failed builds of indexes, blobs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, insert, select, update

from midspan.errors import ItemError, UnknownId
from midspan.gallery import rules
from midspan.gallery.records import AuditEvent

if TYPE_CHECKING:
    from midspan.gallery.catalogue.catalogue import Catalogue


class AuditLog:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue, self._table = catalogue, catalogue.tables.audit

    def write(self, connection: Connection, event: AuditEvent) -> None:
        checked = rules.check_event(event, when=time.time())
        details = json.dumps(checked.details, ensure_ascii=False)
        connection.execute(
            insert(self._table).values(
                moment=checked.when, who=checked.who, what=checked.what, details=details
            )
        )

    def record(self, event: AuditEvent) -> None:
        """In a transaction of its own."""

        def write(connection: Connection) -> None:
            self.write(connection, event)
            self._catalogue.advance(connection)

        self._catalogue.write(write)

    def read(self, *, limit: int, what: str | None = None) -> list[AuditEvent]:
        """The last lines, newest first. what: of this kind only."""
        audit = self._table.c
        statement = select(audit.who, audit.what, audit.details, audit.moment)
        if what is not None:
            statement = statement.where(audit.what == what)
        statement = statement.order_by(audit.line.desc()).limit(rules.check_limit(limit))
        with self._catalogue.reading() as connection:
            lines = connection.execute(statement)
            return [AuditEvent(who, what, json.loads(text), at) for who, what, text, at in lines]

    def contains(self, event: AuditEvent) -> bool:
        """Whether there is a line of this kind and details, however long ago it was written."""
        audit = self._table.c
        statement = select(audit.details).where(audit.what == event.what)
        with self._catalogue.reading() as connection:
            lines = connection.execute(statement).scalars()
            return any(json.loads(text) == event.details for text in lines)


class IndexFailures:
    """By space, so that every process shows them."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def add(self, number: int, message: str) -> int:
        """Returns how many attempts have failed in a row."""
        spaces = self._catalogue.tables.spaces

        def write(connection: Connection) -> int:
            here = spaces.c.number == number
            connection.execute(
                update(spaces)
                .where(here)
                .values(
                    index_failure=message[:2000],
                    index_failed_at=time.time(),
                    index_attempts=spaces.c.index_attempts + 1,
                )
            )
            attempts = connection.execute(select(spaces.c.index_attempts).where(here)).scalar()
            return int(attempts or 0)

        return self._catalogue.write(write)

    def clear(self, number: int) -> None:
        spaces = self._catalogue.tables.spaces
        self._catalogue.write(
            lambda connection: connection.execute(
                update(spaces)
                .where(spaces.c.number == number, spaces.c.index_attempts > 0)
                .values(index_failure=None, index_failed_at=None, index_attempts=0)
            )
        )

    def read(self) -> dict[int, tuple[str, float]]:
        spaces = self._catalogue.tables.spaces.c
        with self._catalogue.reading() as connection:
            failures = connection.execute(
                select(spaces.number, spaces.index_failure, spaces.index_failed_at).where(
                    spaces.index_failure.is_not(None)
                )
            )
            return {number: (message, moment) for number, message, moment in failures}


# ---- bytes by digest: bridges, calibrations, samples. What a digest stands for never changes -----

BLOB_BYTES = 2**30 - 1  # what one value of either database can hold


class Blobs:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue, self._table = catalogue, catalogue.tables.blobs

    def put(self, data: bytes, *, kind: str, digest: str | None = None) -> str:
        """Keep these bytes; returns their digest (SHA-256, unless the caller has one)."""
        if len(data) > BLOB_BYTES:
            raise ItemError(f"a blob of {len(data):,} bytes; at most {BLOB_BYTES:,} are kept")
        name = digest or hashlib.sha256(data).hexdigest()
        table = self._table

        def write(connection: Connection) -> None:
            there = select(table.c.digest).where(table.c.digest == name)
            if connection.execute(there).first() is None:
                connection.execute(insert(table).values(digest=name, kind=kind, bytes=data))

        self._catalogue.write(write)
        return name

    def get(self, digest: str) -> bytes:
        with self._catalogue.reading() as connection:
            data = connection.execute(
                select(self._table.c.bytes).where(self._table.c.digest == digest)
            ).scalar_one_or_none()
        if data is None:
            raise UnknownId(f"there is no blob {digest!r:.80} in {self._catalogue.shown}")
        return bytes(data)

    def update(self, name: str, change: Callable[[bytes | None], bytes], *, kind: str) -> None:
        """A value under a name of its own, which may change: one transaction."""
        table = self._table

        def write(connection: Connection) -> None:
            before = connection.execute(
                select(table.c.bytes).where(table.c.digest == name)
            ).scalar_one_or_none()
            data = change(None if before is None else bytes(before))
            connection.execute(delete(table).where(table.c.digest == name))
            connection.execute(insert(table).values(digest=name, kind=kind, bytes=data))

        self._catalogue.write(write)

    def of_kind(self, kind: str) -> list[str]:
        """The digests of this kind, in their order."""
        with self._catalogue.reading() as connection:
            query = select(self._table.c.digest).where(self._table.c.kind == kind)
            return list(connection.execute(query.order_by(self._table.c.digest)).scalars())

    def delete(self, digest: str) -> bool:
        """Whether it was there."""
        table = self._table
        return self._catalogue.write(
            lambda connection: bool(
                connection.execute(delete(table).where(table.c.digest == digest)).rowcount
            )
        )
