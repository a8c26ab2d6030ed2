"""What is still to be done in an engine that is not in the catalogue's database.

An entry is written in the transaction that makes it necessary and removed when the engine has done
it. A crash in between leaves the entry; the next process repeats it, which does no harm.

intent    a row is being written; if it is not an item within an hour, its vectors are removed
delete    the vectors of a row are to be removed
payload   the payload of a row has changed
space     a space is being made; if the gallery does not know it within an hour, it is dropped
drop      a space is to be dropped
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from sqlalchemy import Connection, delete, select, update

from midspan.errors import MidspanError
from midspan.gallery.catalogue import items
from midspan.gallery.catalogue.items import insert_columns, one_of
from midspan.gallery.catalogue.tables import Tables
from midspan.gallery.engines.base import Engine
from midspan.spaces import IntArray

Kind = Literal["intent", "delete", "payload", "space", "drop"]

INTENT_SECONDS = 3600.0
BATCH = 1000


class OutboxEntry(NamedTuple):
    sequence: int
    kind: Kind
    row: int


def add(
    connection: Connection, tables: Tables, kind: Kind, rows: Iterable[int], *, after: float = 0.0
) -> None:
    many = list(rows)
    count, moment = len(many), time.time() + after
    columns: dict[str, list[Any]] = {"kind": [kind] * count, "row": many, "due": [moment] * count}
    insert_columns(connection, tables, tables.outbox, columns)


def remove(connection: Connection, tables: Tables, kind: Kind, rows: Collection[int]) -> int:
    outbox = tables.outbox
    statement = delete(outbox).where(
        outbox.c.kind == kind, one_of(tables, outbox.c.row, list(rows))
    )
    return int(connection.execute(statement).rowcount)


def abandon(connection: Connection, tables: Tables, rows: Collection[int]) -> None:
    """Intents that came to nothing."""
    outbox = tables.outbox
    connection.execute(
        update(outbox)
        .where(outbox.c.kind == "intent", one_of(tables, outbox.c.row, list(rows)))
        .values(kind="delete", due=time.time())
    )


def remove_entries(connection: Connection, tables: Tables, sequences: Collection[int]) -> None:
    outbox = tables.outbox
    connection.execute(delete(outbox).where(one_of(tables, outbox.c.sequence, list(sequences))))


def due(connection: Connection, tables: Tables) -> list[OutboxEntry]:
    """The next entries. An intent whose time is over becomes a deletion first, and for good."""
    outbox, now = tables.outbox, time.time()
    for kind, becomes in (("intent", "delete"), ("space", "drop")):
        connection.execute(
            update(outbox).where(outbox.c.kind == kind, outbox.c.due <= now).values(kind=becomes)
        )
    entries = connection.execute(
        select(outbox.c.sequence, outbox.c.kind, outbox.c.row)
        .where(outbox.c.due <= now)
        .order_by(outbox.c.sequence)
        .limit(BATCH)
    )
    return [OutboxEntry(*entry) for entry in entries]


def any_due(connection: Connection, tables: Tables) -> bool:
    outbox = tables.outbox
    entries = connection.execute(
        select(outbox.c.sequence).where(outbox.c.due <= time.time()).limit(1)
    )
    return entries.first() is not None


def intended(connection: Connection, tables: Tables, rows: Collection[int]) -> set[int]:
    """Those of the rows that somebody is writing."""
    outbox = tables.outbox
    statement = select(outbox.c.row).where(
        outbox.c.kind == "intent", one_of(tables, outbox.c.row, list(rows))
    )
    return set(connection.execute(statement).scalars())


# ---- draining it ---------------------------------------------------------------------------------

SETTLE = 5  # times that a payload is written again because it changed meanwhile

if TYPE_CHECKING:
    from midspan.gallery.catalogue.catalogue import Catalogue

log = logging.getLogger("midspan.gallery")


class EngineQueue:
    def __init__(self, catalogue: Catalogue, engine: Engine) -> None:
        self.catalogue, self.engine = catalogue, engine
        self.tables = catalogue.tables

    def then(self, kind: Kind, rows: Collection[int], action: Callable[[], None]) -> None:
        """What has been committed is done in the engine; if that fails, `drain` does it later."""
        if not rows:
            return
        try:
            action()
        except MidspanError as error:
            log.warning("%s: retrying %s later: %s", self.catalogue.shown, kind, error)
            return
        self.catalogue.write(
            lambda connection: remove(connection, self.tables, kind, rows), durable=False
        )

    def drain(self) -> int:
        """Do what was noted and not done. Returns how many entries that were."""
        if self.engine.colocated:
            return 0
        count = 0
        while True:
            with self.catalogue.reading() as connection:
                if not any_due(connection, self.tables):
                    return count
            entries = self.catalogue.write(lambda c: due(c, self.tables))
            by_kind: dict[str, list[int]] = {}
            for entry in entries:
                by_kind.setdefault(entry.kind, []).append(entry.row)
            if rows := by_kind.get("delete"):
                self.engine.delete(rows_array(rows))
            if rows := by_kind.get("payload"):
                self.send_payloads(rows)
            for number in by_kind.get("drop", ()):
                self.engine.drop_space(number)
            self._done([entry.sequence for entry in entries])
            count += len(entries)

    def _done(self, sequences: list[int]) -> None:
        self.catalogue.write(
            lambda connection: remove_entries(connection, self.tables, sequences),
            durable=False,
        )

    def send_payloads(self, rows: Collection[int]) -> None:
        """Until they stay as they are: another writer may have been faster with an older one."""
        left = list(rows)
        for _ in range(SETTLE):
            with self.catalogue.reading() as connection:
                before = items.payload_texts(connection, self.tables, left)
            self.engine.set_payload({row: text for row, (text, _) in before.items()})
            with self.catalogue.reading() as connection:
                after = items.payload_texts(connection, self.tables, list(before))
            left = [row for row in after if after[row][1] != before[row][1]]
            if not left:
                return


def rows_array(rows: Iterable[int]) -> IntArray:
    return np.fromiter(rows, dtype=np.int64)
