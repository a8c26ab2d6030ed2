"""The work list: what lacks a vector in the target, who holds it, what failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from midspan.gallery import rules
from midspan.gallery.records import Failed, Failure, Task
from midspan.gallery.stores.pgvector.rows import read_items, read_state
from midspan.gallery.stores.pgvector.server import Server

if TYPE_CHECKING:
    from midspan.gallery.stores.pgvector.server import Connection

NOW = "extract(epoch FROM clock_timestamp())"  # the server's clock: workers' clocks differ
NEXT = (  # in the order of the index on it: however long the list is, nothing is sorted
    f"SELECT item FROM {{work}} WHERE NOT failed AND due <= {NOW} "
    "ORDER BY priority DESC, item LIMIT %s FOR UPDATE SKIP LOCKED"
)


def prioritise(
    connection: Connection, server: Server, ids: Sequence[str], priorities: Sequence[float]
) -> None:
    pairs = [
        (id, priority)
        for id, priority in rules.check_priorities(ids, priorities)
        if rules.possible([id])
    ]
    connection.execute(
        server.sql(
            "UPDATE {work} AS w SET priority = d.priority FROM unnest(%s::text[], %s::float8[]) "
            "AS d (id, priority) JOIN {items} AS i ON i.id = d.id WHERE w.item = i.item"
        ),
        ([id for id, _ in pairs], [priority for _, priority in pairs]),
    )


def claim(
    connection: Connection, server: Server, worker: str, limit: int, seconds: float
) -> list[Task]:
    _, numbers = read_state(connection, server)
    rows = connection.execute(
        server.sql(
            f"UPDATE {{work}} AS w SET due = {NOW} + %s, worker = %s FROM ({NEXT}) AS next "
            "WHERE w.item = next.item RETURNING w.item, w.priority, w.attempts"
        ),
        (seconds, worker, limit),
    ).fetchall()
    rows.sort(key=lambda row: (-row[1], row[0]))
    wanted = [item for item, _, _ in rows]
    items = dict(read_items(connection, server, numbers, "i.item = ANY(%s)", (wanted,)))
    return [Task(items[item], attempts) for item, _, attempts in rows]


def release(connection: Connection, server: Server, worker: str) -> int:
    return connection.execute(
        server.sql("UPDATE {work} SET due = 0, worker = NULL WHERE worker = %s"), (worker,)
    ).rowcount


def fail(
    connection: Connection,
    server: Server,
    reports: Sequence[Failed],
    retry_after: float | None,
) -> None:
    reports = [report for report in reports if rules.possible([report.id])]
    connection.execute(
        server.sql(
            "UPDATE {work} AS w SET attempts = w.attempts + 1, worker = NULL, failed = %s, "
            f"due = {NOW} + %s, reason = d.reason, moment = {NOW}, id = d.id "
            "FROM unnest(%s::text[], %s::bigint[], %s::text[]) AS d (id, revision, reason) "
            "JOIN {items} AS i ON i.id = d.id AND i.revision = d.revision WHERE w.item = i.item"
        ),
        (
            retry_after is None,
            retry_after or 0.0,
            [report.id for report in reports],
            [report.revision for report in reports],
            [rules.reason(report) for report in reports],
        ),
    )


def failures(connection: Connection, server: Server, after: str, limit: int) -> list[Failure]:
    rows = connection.execute(
        server.sql(
            "SELECT w.id, i.uri, w.reason, w.attempts, w.moment FROM (SELECT * FROM {work} "
            "WHERE failed AND id > %s ORDER BY id LIMIT %s) AS w "  # by the index, then the rest
            "JOIN {items} AS i USING (item) ORDER BY w.id"
        ),
        (rules.check_cursor(after), limit),
    )
    return [Failure(*row) for row in rows]


def retry(connection: Connection, server: Server) -> int:
    return connection.execute(
        server.sql("UPDATE {work} SET failed = false, due = 0, attempts = 0 WHERE failed")
    ).rowcount
