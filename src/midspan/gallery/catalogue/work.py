"""The work list: what lacks a vector in the target, who holds it, what failed.

By falling priority, then in the order of adding. `due` is when a task may be claimed: 0, the end of
a lease, or the end of a pause after a failure.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Connection,
    Double,
    bindparam,
    cast,
    delete,
    extract,
    false,
    func,
    insert,
    literal,
    select,
    text,
    true,
    update,
)

from midspan.gallery import rules
from midspan.gallery.catalogue.items import ask, find, insert_columns, items_of_rows
from midspan.gallery.catalogue.tables import Tables
from midspan.gallery.records import Failed, Failure, Task

if TYPE_CHECKING:
    from midspan.gallery.catalogue.catalogue import Catalogue

CHUNK = 5000  # ids looked up at once
PORTION = 20_000  # items put on a new list in one transaction: half a second of PostgreSQL


class WorkList:
    """Every method is one transaction."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue, self._tables = catalogue, catalogue.tables

    def claim(self, *, worker: str, limit: int, seconds: float) -> list[Task]:
        """The next tasks that nobody holds; they are this worker's for so many seconds."""
        rules.check_limit(limit)
        return self._catalogue.write(
            lambda connection: self._claim(connection, worker, limit, seconds), durable=False
        )

    def _claim(self, connection: Connection, worker: str, limit: int, seconds: float) -> list[Task]:
        snapshot = self._catalogue.read(connection)
        if snapshot.state.target is None:  # a list in the making
            return []
        tables, sqlite = self._tables, self._tables.dialect == "sqlite"
        now = repr(time.time()) if sqlite else "extract(epoch FROM clock_timestamp())"
        # Locked first, then changed by row: in one statement a bad plan could run the limit twice.
        free = (
            'SELECT "row", attempts FROM "{p}work" WHERE failed = '
            f'{"0" if sqlite else "false"} AND due <= {now} ORDER BY priority DESC, "row" LIMIT ?'
        )
        claimed = ask(
            connection, tables, free + ("" if sqlite else " FOR UPDATE SKIP LOCKED"), limit
        )
        rows = [row for row, _ in claimed]
        if not rows:
            return []
        lease = f'UPDATE "{{p}}work" SET due = {now} + ?, worker = ? WHERE "row" {{among}}'
        ask(connection, tables, lease, float(seconds), worker, rows)
        items = items_of_rows(connection, tables, snapshot.numbers, rows)
        return [Task(items[row], attempts, row) for row, attempts in claimed if row in items]

    def renew(self, worker: str, *, seconds: float) -> int:
        """What this worker still holds is its own for so many more seconds; how many that are."""
        work, now = self._tables.work, self._now()
        return self._change(
            update(work)
            .where(work.c.worker == worker, work.c.failed == false(), work.c.due > now)
            .values(due=now + seconds),
            durable=False,
        )

    def release(self, worker: str) -> int:
        """Give back what this worker holds."""
        work = self._tables.work
        return self._change(
            update(work).where(work.c.worker == worker).values(due=0.0, worker=None),
            durable=False,
        )

    def fail(self, reports: Sequence[Failed], *, retry_after: float | None) -> None:
        """Try again after so many seconds, or never (None). Other revisions are left alone."""
        self._catalogue.write(lambda connection: self._fail(connection, reports, retry_after))

    def _fail(
        self, connection: Connection, reports: Sequence[Failed], retry_after: float | None
    ) -> None:
        known = find(connection, self._tables, [report.id for report in reports])
        work, now = self._tables.work, self._now()
        values = [
            {"at": known[report.id].row, "why": rules.reason(report)}
            for report in reports
            if report.id in known and known[report.id].revision == report.revision
        ]
        if values:
            connection.execute(
                update(work)
                .where(work.c.row == bindparam("at"))
                .values(
                    attempts=work.c.attempts + 1,
                    worker=None,
                    failed=retry_after is None,
                    due=now + (retry_after or 0.0),
                    reason=bindparam("why"),
                    moment=now,
                ),
                values,
            )
        self._catalogue.advance(connection)

    def failures(self, *, after: str = "", limit: int) -> list[Failure]:
        """What failed for good, by id."""
        rules.check_limit(limit)
        work, items = self._tables.work.c, self._tables.items.c
        statement = (
            select(items.id, items.uri, work.reason, work.attempts, work.moment)
            .join_from(self._tables.work, self._tables.items, work.row == items.row)
            .where(work.failed == true(), items.id > rules.check_cursor(after))
            .order_by(items.id)
            .limit(limit)
        )
        with self._catalogue.reading() as connection:
            return [Failure(*row) for row in connection.execute(statement)]

    def retry(self) -> int:
        """Put everything that failed back on the list."""
        work = self._tables.work
        return self._change(
            update(work).where(work.c.failed == true()).values(failed=False, due=0.0, attempts=0)
        )

    def prioritise(self, ids: Sequence[str], priorities: Sequence[float]) -> None:
        """Ids that are not on the list are passed over."""
        pairs = rules.check_priorities(ids, priorities)
        self._catalogue.write(lambda connection: self._prioritise(connection, pairs))

    def _prioritise(self, connection: Connection, pairs: list[tuple[str, float]]) -> None:
        tables, work = self._tables, self._tables.work
        each = update(work).where(work.c.row == bindparam("at")).values(priority=bindparam("to"))
        together = (  # a statement for each of a million rows would take minutes
            'UPDATE "{p}work" w SET priority = v.priority FROM '
            'unnest(?::bigint[], ?::float8[]) AS v ("row", priority) WHERE w."row" = v."row"'
        )
        for start in range(0, len(pairs), CHUNK):
            part = pairs[start : start + CHUNK]
            known = find(connection, tables, [id for id, _ in part])
            values = [(known[id].row, priority) for id, priority in part if id in known]
            if values and tables.dialect == "postgresql":
                ask(connection, tables, together, *map(list, zip(*values, strict=True)))
            elif values:
                connection.execute(each, [{"at": row, "to": to} for row, to in values])
        self._catalogue.advance(connection)

    def pending_exists(self) -> bool:
        """Whether anything is still to be embedded, without counting it."""
        work = self._tables.work
        with self._catalogue.reading() as connection:
            pending = connection.execute(
                select(work.c.row).where(work.c.failed == false()).limit(1)
            )
            return pending.first() is not None

    def _change(self, statement: Any, *, durable: bool = True) -> int:
        def change(connection: Connection) -> int:
            count = int(connection.execute(statement).rowcount)
            if durable:
                self._catalogue.advance(connection)
            return count

        return self._catalogue.write(change, durable=durable)

    def _now(self) -> Any:
        """The server's clock where there is one: workers' clocks differ."""
        if self._tables.dialect == "postgresql":
            return cast(extract("epoch", func.clock_timestamp()), Double)
        return literal(time.time())


# ---- inside somebody's transaction ---------------------------------------------------------------


def list_all(
    connection: Connection, tables: Tables, number: int | None, *, after: int = -1
) -> None:
    """The list of a new target: every item that has no vector in this space; None: empty.

    after: the last row that `list_portion` listed.
    """
    work = tables.work
    if after >= 0 and number is not None:
        having = select(tables.stored.c.row).where(tables.stored.c.space == number)
        connection.execute(delete(work).where(work.c.row.in_(having)))
    elif tables.dialect == "postgresql":  # a rollback has no time for a million rows
        connection.execute(text(f'TRUNCATE "{work.name}"'))
    else:
        connection.execute(delete(work))
    if number is not None:
        _list(connection, tables, number, tables.items.c.row > after)


def is_long(connection: Connection, tables: Tables) -> bool:
    """Whether listing every item would keep other writers waiting."""
    row = tables.items.c.row
    beyond = connection.execute(select(row).order_by(row).offset(PORTION).limit(1))
    return beyond.first() is not None


def list_portion(
    connection: Connection, tables: Tables, number: int | None, after: int
) -> int | None:
    """The next items after this row, of the list of a target that is not set yet; the last row.

    None: what is left, less than a portion, is for `list_all`. Rows grow with time, and this
    transaction is alone: none up to the last one can appear later, but for those of writes that
    have begun (intents), before which it stops. number: None for a new space.
    """
    row, outbox = tables.items.c.row, tables.outbox.c
    page = select(row).where(row > after).order_by(row).offset(PORTION - 1).limit(1)
    last = connection.execute(page).scalar()
    begun = select(func.min(outbox.row)).where(outbox.kind == "intent")
    intent = connection.execute(begun).scalar()
    if last is None or (intent is not None and intent <= last):
        return None
    _list(connection, tables, number, row > after, row <= last)
    return int(last)


def _list(connection: Connection, tables: Tables, number: int | None, *among: Any) -> None:
    row, stored, work = tables.items.c.row, tables.stored.c, tables.work
    missing = [~select(work.c.row).where(work.c.row == row).exists()]
    if number is not None:
        having = select(stored.row).where(stored.space == number, stored.row == row)
        missing.append(~having.exists())
    lacking = select(row).where(*among, *missing).order_by(row)
    connection.execute(insert(work).from_select(["row"], lacking))


def add(connection: Connection, tables: Tables, rows: Iterable[int]) -> None:
    insert_columns(connection, tables, tables.work, {"row": sorted(rows)})
