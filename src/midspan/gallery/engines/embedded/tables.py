"""The engine's tables in the catalogue's SQLite file: the record of which a process holds copies.

Each change has a number, rising over all spaces. A vector's number is its key, so vectors are
appended whatever the order of their rows, and a process that follows the others reads "all after n"
in one range. Deletions are listed for a while; who is further behind compares all rows.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from midspan.gallery.rules import Quantise, check_quantise
from midspan.spaces import FloatArray, IntArray, Space

DELETIONS_KEPT = 200_000  # changes after which a deletion is no longer listed
CHUNK = 4096  # rows read at once

TABLES = (
    "CREATE TABLE IF NOT EXISTS vector_state (one INTEGER PRIMARY KEY CHECK (one = 1), "
    "sequence INTEGER NOT NULL, floor INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS vector_spaces (number INTEGER PRIMARY KEY, space TEXT NOT NULL, "
    "snapshot TEXT)",
    "CREATE TABLE IF NOT EXISTS vector_deletions (sequence INTEGER PRIMARY KEY, "
    "row INTEGER NOT NULL)",
    "INSERT OR IGNORE INTO vector_state VALUES (1, 0, 0)",
)


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """The snapshot that all processes search: made by one of them, named in the file."""

    token: str  # random: a copy or a backup of the file never meets the snapshot of another
    rows: int
    sequence: int  # the last change that it covers
    learnt: int  # rows that were written since the centres were learnt, and are in it
    quantise: Quantise
    probes: int  # lists to look into
    oversampling: float  # candidates for each neighbour
    judged: tuple[int, ...]  # spaces whose queries it was calibrated with
    recall: float  # measured then

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SnapshotRecord:
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "judged": tuple(fields["judged"])})


class SpaceRecord(NamedTuple):
    space: Space
    snapshot: SnapshotRecord | None


class EngineState(NamedTuple):
    sequence: int  # of the last change
    floor: int  # deletions up to this one are no longer listed
    quantise: Quantise  # the owner's choice, from the catalogue
    spaces: dict[int, SpaceRecord]


def create_tables(connection: sqlite3.Connection) -> None:
    for statement in TABLES:
        connection.execute(statement)


def read_state(connection: sqlite3.Connection) -> EngineState:
    try:
        sequence, floor, settings = connection.execute(
            "SELECT v.sequence, v.floor, g.settings FROM vector_state AS v, gallery AS g"
        ).fetchone()
    except sqlite3.OperationalError:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'vector_state'").fetchone():
            raise
        return EngineState(0, 0, "none", {})  # no space was ever created
    spaces = {
        number: SpaceRecord(
            Space.from_json(space), None if text is None else SnapshotRecord.from_json(text)
        )
        for number, space, text in connection.execute(
            "SELECT number, space, snapshot FROM vector_spaces"
        )
    }
    quantise = check_quantise(json.loads(settings).get("quantise", "none"))
    return EngineState(sequence, floor, quantise, spaces)


# ---- changes, inside somebody's transaction


def create_space(connection: sqlite3.Connection, number: int, space: Space) -> None:
    """Nothing but its record is made of a space that has its table already."""
    create_tables(connection)
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {_table(number)} (sequence INTEGER PRIMARY KEY, "
        "row INTEGER NOT NULL UNIQUE, "
        f"vector BLOB NOT NULL CHECK (length(vector) = {4 * space.dim}))"
    )
    connection.execute(
        "INSERT INTO vector_spaces VALUES (?, ?, NULL) "
        "ON CONFLICT (number) DO UPDATE SET space = excluded.space",
        (number, space.to_json()),
    )
    last = connection.execute(f"SELECT max(sequence) FROM {_table(number)}").fetchone()[0]
    if last is not None:  # a table that an earlier version made
        connection.execute(
            "UPDATE vector_state SET sequence = max(sequence, ?1), floor = max(floor, ?1)", (last,)
        )
    _advance(connection, 1)


def drop_space(connection: sqlite3.Connection, number: int) -> None:
    create_tables(connection)
    connection.execute(f"DROP TABLE IF EXISTS {_table(number)}")
    connection.execute("DELETE FROM vector_spaces WHERE number = ?", (number,))
    _advance(connection, 1)


def put(connection: sqlite3.Connection, number: int, rows: IntArray, vectors: FloatArray) -> None:
    first = _advance(connection, len(rows)) + 1
    data = np.ascontiguousarray(vectors, dtype="<f4")
    width = data.shape[1] * 4
    view = memoryview(data.tobytes())
    connection.executemany(
        f"INSERT OR REPLACE INTO {_table(number)} VALUES (?, ?, ?)",
        (
            (first + place, row, view[place * width : (place + 1) * width])
            for place, row in enumerate(rows.tolist())
        ),
    )


def delete(connection: sqlite3.Connection, rows: IntArray) -> None:
    numbers = [number for (number,) in connection.execute("SELECT number FROM vector_spaces")]
    listed = rows.tolist()
    for number in numbers:
        connection.executemany(
            f"DELETE FROM {_table(number)} WHERE row = ?", ((row,) for row in listed)
        )
    before = _advance(connection, len(listed))
    connection.executemany(
        "INSERT INTO vector_deletions VALUES (?, ?)",
        ((before + 1 + place, row) for place, row in enumerate(listed)),
    )
    floor = before + len(listed) - DELETIONS_KEPT
    if floor > 0:
        connection.execute("DELETE FROM vector_deletions WHERE sequence <= ?", (floor,))
        connection.execute("UPDATE vector_state SET floor = max(floor, ?)", (floor,))


def set_snapshot(
    connection: sqlite3.Connection, number: int, record: SnapshotRecord | None
) -> bool:
    """False if the space was dropped meanwhile."""
    changed = connection.execute(
        "UPDATE vector_spaces SET snapshot = ? WHERE number = ?",
        (None if record is None else record.to_json(), number),
    ).rowcount
    _advance(connection, 1)
    return changed == 1


def _advance(connection: sqlite3.Connection, count: int) -> int:
    """Take so many numbers; the last one before them."""
    after = connection.execute(
        "UPDATE vector_state SET sequence = sequence + ? RETURNING sequence", (count,)
    ).fetchall()[0][0]
    return int(after) - count


# ---- reading


def vectors_after(
    connection: sqlite3.Connection, number: int, sequence: int, *, dim: int
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Rows and vectors (n, D) that were put after this change, in that order."""
    cursor = connection.execute(
        f"SELECT row, vector FROM {_table(number)} WHERE sequence > ? ORDER BY sequence",
        (sequence,),
    )
    while chunk := cursor.fetchmany(CHUNK):
        rows, blobs = zip(*chunk, strict=True)
        yield np.array(rows, dtype=np.int64), as_matrix(blobs, dim)


def deleted_after(connection: sqlite3.Connection, sequence: int) -> IntArray:
    rows = connection.execute(
        "SELECT row FROM vector_deletions WHERE sequence > ?", (sequence,)
    ).fetchall()
    return np.array(rows, dtype=np.int64).reshape(-1)


def all_rows(connection: sqlite3.Connection, number: int) -> IntArray:
    """By rising number; from the index alone."""
    cursor = connection.execute(f"SELECT row FROM {_table(number)} ORDER BY row")
    return np.fromiter((row for (row,) in cursor), dtype=np.int64)


def rows_after(connection: sqlite3.Connection, number: int, row: int, limit: int) -> IntArray:
    rows = connection.execute(
        f"SELECT row FROM {_table(number)} WHERE row > ? ORDER BY row LIMIT ?", (row, limit)
    ).fetchall()
    return np.array(rows, dtype=np.int64).reshape(-1)


def fetch(
    connection: sqlite3.Connection, number: int, rows: IntArray, *, dim: int
) -> tuple[IntArray, FloatArray]:
    """Of those that are there, in the order asked for."""
    listed = rows.tolist()
    blobs = dict(
        connection.execute(
            f"SELECT row, vector FROM {_table(number)} "
            "WHERE row IN (SELECT value FROM json_each(?))",
            (json.dumps(listed),),
        ).fetchall()
    )
    there = [row for row in listed if row in blobs]
    return np.array(there, dtype=np.int64), as_matrix([blobs[row] for row in there], dim)


def count(connection: sqlite3.Connection, number: int, *, after: int = -1) -> int:
    """Vectors that were put after this change."""
    condition = "" if after < 0 else f" WHERE sequence > {int(after)}"
    row = connection.execute(f"SELECT count(*) FROM {_table(number)}{condition}").fetchone()
    return int(row[0])


def sample(
    connection: sqlite3.Connection, number: int, places: FloatArray, *, dim: int
) -> tuple[IntArray, FloatArray]:
    """Rows and vectors about these places (0 to 1) between the first and the last change."""
    table = _table(number)
    first, last = connection.execute(f"SELECT min(sequence), max(sequence) FROM {table}").fetchone()
    if first is None:
        return np.empty(0, dtype=np.int64), np.empty((0, dim), dtype=np.float32)
    blobs: dict[int, bytes] = {}
    for place in (first + np.floor(places * (last - first + 1))).astype(np.int64).tolist():
        blobs.update(
            connection.execute(
                f"SELECT row, vector FROM {table} WHERE sequence >= ? ORDER BY sequence LIMIT 1",
                (place,),
            ).fetchall()
        )
    return np.array(list(blobs), dtype=np.int64), as_matrix(list(blobs.values()), dim)


def as_matrix(blobs: list[bytes] | tuple[bytes, ...], dim: int) -> FloatArray:
    """(n, D), a copy of the bytes."""
    matrix: FloatArray = np.frombuffer(b"".join(blobs), dtype="<f4").reshape(-1, dim)
    return matrix


def _table(number: int) -> str:
    return f"vectors_{int(number)}"
