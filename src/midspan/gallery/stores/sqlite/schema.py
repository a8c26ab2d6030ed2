"""The tables of a gallery file.

A vector's row has the number of the write that made it as its key: vectors are appended whatever
the order of the items, and a process that follows another reads "all rows after n" in one range.
Each space has a table of its own; a space that is given up is dropped with its table.

The work list stands in the order of its priorities, so that a claim reads and marks neighbours,
whichever items they are: in a large file any order but that of the items touches a page for each.
A file in the middle of an upgrade may have the work list of before, with the item as its key; every
statement means the same there.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import time
from pathlib import Path

from midspan.errors import GalleryError, StoreError
from midspan.gallery.quantise import Quantise
from midspan.gallery.records import Entry, State
from midspan.gallery.stores.sqlite.database import APPLICATION, FORMAT, connect, explain
from midspan.gallery.stores.sqlite.settings import write_quantise
from midspan.spaces import Space

GONE_KEPT = 200_000  # removals that a follower can catch up with before it must read all again

TABLES = """
CREATE TABLE gallery (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL,     -- of the state
    sequence INTEGER NOT NULL,    -- of the last write
    floor INTEGER NOT NULL,       -- removals up to this one are no longer listed in `gone`
    live TEXT NOT NULL,
    target TEXT,
    upgrade TEXT
);
CREATE TABLE spaces (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    fingerprint TEXT NOT NULL UNIQUE,
    json TEXT NOT NULL
);
CREATE TABLE items (
    item INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    uri TEXT,
    payload TEXT NOT NULL,
    revision INTEGER NOT NULL,
    created REAL NOT NULL,
    changed REAL NOT NULL,
    sequence INTEGER NOT NULL
);
CREATE INDEX items_sequence ON items (sequence);
CREATE TABLE gone (
    sequence INTEGER PRIMARY KEY,
    item INTEGER NOT NULL
);
CREATE TABLE trail (
    line INTEGER PRIMARY KEY AUTOINCREMENT,
    moment REAL NOT NULL,
    who TEXT NOT NULL,
    what TEXT NOT NULL,
    details TEXT NOT NULL
);
"""

WORK = """
CREATE TABLE work (
    item INTEGER NOT NULL UNIQUE REFERENCES items ON DELETE CASCADE,
    priority REAL NOT NULL DEFAULT 0,
    due REAL NOT NULL DEFAULT 0,
    worker TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '',
    moment REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (failed, priority DESC, item)
) WITHOUT ROWID;
CREATE INDEX work_failed ON work (item) WHERE failed = 1;
CREATE INDEX work_worker ON work (worker) WHERE worker IS NOT NULL;
"""


def create_file(path: Path, state: State, *, entry: Entry, quantise: Quantise) -> None:
    """Write an empty gallery beside `path`, then give it its name: it is there whole or not."""
    if path.exists():
        raise GalleryError(f"there is something at {path} already; open it, or choose another name")
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        part.touch(mode=0o666, exist_ok=False)
        _fill(part, state, entry, quantise)
        _give_name(part, path)
    except sqlite3.Error as error:
        raise explain(error, path) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be made ({error.strerror})") from error
    finally:
        for leftover in (part, Path(f"{part}-wal"), Path(f"{part}-shm")):
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)


def _give_name(part: Path, path: Path) -> None:
    try:
        os.link(part, path)
    except FileExistsError as error:  # somebody else was first
        raise GalleryError(f"there is something at {path} already; open it") from error
    except OSError:  # a file system without links
        part.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name too must survive a power cut
    finally:
        os.close(folder)


def _fill(path: Path, state: State, entry: Entry, quantise: Quantise) -> None:
    connection = connect(path)
    try:
        space = next(iter(state.spaces.values()))
        connection.execute(f"PRAGMA page_size = {page_size(space.dim)}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in (TABLES + WORK).split(";"):
            if statement.strip():
                connection.execute(statement)
        connection.execute(
            "INSERT INTO gallery VALUES (1, ?, 1, 0, ?, NULL, NULL)",
            (state.version, json.dumps(state.live)),
        )
        for space in state.spaces.values():
            add_space(connection, space)
        write_quantise(connection, quantise)
        add_line(connection, entry)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def page_size(dim: int) -> int:
    """The smallest page that rows of this many float32 fill to at least 85 %."""
    row = 4 * dim + 16
    for size in (4096, 8192, 16384):
        usable = size - 12
        if (usable // row) * row >= 0.85 * size:
            return size
    return 16384


def add_space(connection: sqlite3.Connection, space: Space) -> int:
    number = connection.execute(
        "INSERT INTO spaces (fingerprint, json) VALUES (?, ?)", (space.fingerprint, space.to_json())
    ).lastrowid
    assert number is not None
    connection.execute(
        f"CREATE TABLE vectors_{number} ("
        "sequence INTEGER PRIMARY KEY, "
        "item INTEGER NOT NULL UNIQUE REFERENCES items ON DELETE CASCADE, "
        f"vector BLOB NOT NULL CHECK (length(vector) = {4 * space.dim}))"
    )
    return number


def drop_space(connection: sqlite3.Connection, number: int) -> None:
    connection.execute(f"DROP TABLE vectors_{int(number)}")
    connection.execute("DELETE FROM spaces WHERE number = ?", (number,))


def empty_work(connection: sqlite3.Connection) -> None:
    """By a new table: with a million rows that takes a moment, deleting them takes seconds."""
    connection.execute("DROP TABLE work")
    for statement in WORK.split(";"):
        if statement.strip():
            connection.execute(statement)


def add_line(connection: sqlite3.Connection, entry: Entry) -> None:
    connection.execute(
        "INSERT INTO trail (moment, who, what, details) VALUES (?, ?, ?, ?)",
        (
            entry.when or time.time(),
            entry.who,
            entry.what,
            json.dumps(entry.details, ensure_ascii=False),
        ),
    )
