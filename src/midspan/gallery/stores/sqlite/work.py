"""The work list: what lacks a vector in the target, who holds it, what failed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from midspan.gallery import rules
from midspan.gallery.records import Failed, Failure, Task
from midspan.gallery.stores.sqlite.rows import find, read_items, read_state
from midspan.gallery.stores.sqlite.writes import Numbers

CHUNK = 5000  # ids looked up at once


def prioritise(
    connection: sqlite3.Connection, ids: Sequence[str], priorities: Sequence[float]
) -> None:
    pairs = rules.check_priorities(ids, priorities)
    for start in range(0, len(pairs), CHUNK):
        part = pairs[start : start + CHUNK]
        items = find(connection, [id for id, _ in part])
        connection.executemany(
            "UPDATE work SET priority = ? WHERE item = ?",
            [(priority, items[id]) for id, priority in part if id in items],
        )
    Numbers(connection).save()


def claim(connection: sqlite3.Connection, worker: str, limit: int, seconds: float) -> list[Task]:
    now = time.time()
    state, numbers = read_state(connection)
    rows = connection.execute(
        "SELECT item, priority, attempts FROM work WHERE failed = 0 AND due <= ? "
        "ORDER BY priority DESC, item LIMIT ?",
        (now, limit),
    ).fetchall()
    connection.executemany(  # by the table's key: the item alone would be looked up elsewhere
        "UPDATE work SET due = ?, worker = ? WHERE failed = 0 AND priority = ? AND item = ?",
        [(now + seconds, worker, priority, item) for item, priority, _ in rows],
    )
    # What is on the list has no vector in the target: nobody need look for it.
    others = {space: number for space, number in numbers.items() if space != state.target}
    items = read_items(connection, others, [item for item, _, _ in rows])
    return [Task(items[item], attempts) for item, _, attempts in rows]


def release(connection: sqlite3.Connection, worker: str) -> int:
    return connection.execute(
        "UPDATE work SET due = 0, worker = NULL WHERE worker = ?", (worker,)
    ).rowcount


def fail(
    connection: sqlite3.Connection, reports: Sequence[Failed], retry_after: float | None
) -> None:
    now = time.time()
    connection.executemany(
        "UPDATE work SET attempts = attempts + 1, worker = NULL, failed = ?, due = ?, reason = ?, "
        "moment = ? WHERE item = (SELECT item FROM items WHERE id = ? AND revision = ?)",
        [
            (
                retry_after is None,
                now + (retry_after or 0.0),
                rules.reason(report),
                now,
                report.id,
                report.revision,
            )
            for report in reports
            if rules.possible([report.id])
        ],
    )
    Numbers(connection).save()


def failures(connection: sqlite3.Connection, after: str, limit: int) -> list[Failure]:
    rows = connection.execute(
        "SELECT id, uri, reason, attempts, moment FROM work JOIN items USING (item) "
        "WHERE failed = 1 AND id > ? ORDER BY id LIMIT ?",
        (rules.check_cursor(after), limit),
    )
    return [Failure(*row) for row in rows]


def retry(connection: sqlite3.Connection) -> int:
    count = connection.execute(
        "UPDATE work SET failed = 0, due = 0, attempts = 0 WHERE failed = 1"
    ).rowcount
    Numbers(connection).save()
    return count
