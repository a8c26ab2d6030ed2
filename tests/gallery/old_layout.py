"""Galleries as they were before there was a catalogue, statement by statement.

SQLite: format 1. PostgreSQL: the tables with `item` and `trail`. Two spaces, in the middle of a
direct upgrade from OLD to NEW: items i0 … i5, of which i0 and i1 have a new vector, i2 has failed,
i3 is claimed; i4 was replaced once; one item between them was deleted.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg

from tests.gallery.samples import NEW, OLD, embed

IDS = [f"i{number}" for number in range(6)]
UPGRADE = {
    "mode": "direct",
    "old": OLD.fingerprint,
    "new": NEW.fingerprint,
    "phase": "running",
    "started": 5.0,
}

SQLITE = """
CREATE TABLE gallery (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    version INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    floor INTEGER NOT NULL,
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
CREATE TABLE gone (sequence INTEGER PRIMARY KEY, item INTEGER NOT NULL);
CREATE TABLE trail (
    line INTEGER PRIMARY KEY AUTOINCREMENT,
    moment REAL NOT NULL,
    who TEXT NOT NULL,
    what TEXT NOT NULL,
    details TEXT NOT NULL
);
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
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

POSTGRESQL = """
CREATE TABLE {p}gallery (
    one int PRIMARY KEY CHECK (one = 1),
    version bigint NOT NULL,
    live jsonb NOT NULL,
    target text,
    upgrade jsonb,
    settings jsonb NOT NULL
);
CREATE TABLE {p}spaces (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fingerprint text NOT NULL UNIQUE,
    json text NOT NULL
);
CREATE TABLE {p}items (
    item bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    uri text,
    payload jsonb NOT NULL,
    revision bigint NOT NULL,
    created float8 NOT NULL,
    changed float8 NOT NULL
);
CREATE TABLE {p}work (
    item bigint PRIMARY KEY REFERENCES {p}items ON DELETE CASCADE,
    priority float8 NOT NULL DEFAULT 0,
    due float8 NOT NULL DEFAULT 0,
    worker text,
    attempts int NOT NULL DEFAULT 0,
    failed boolean NOT NULL DEFAULT false,
    id text COLLATE "C",
    reason text NOT NULL DEFAULT '',
    moment float8 NOT NULL DEFAULT 0
);
CREATE INDEX ON {p}work (priority DESC, item) WHERE NOT failed;
CREATE INDEX ON {p}work (worker) WHERE worker IS NOT NULL;
CREATE INDEX ON {p}work (id) WHERE failed;
CREATE TABLE {p}trail (
    line bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    moment float8 NOT NULL,
    who text NOT NULL,
    what text NOT NULL,
    details jsonb NOT NULL
);
CREATE SEQUENCE {p}sequence;
"""


def old_file(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(SQLITE)
    connection.execute("PRAGMA application_id = 1836279655")  # "msgg"
    connection.execute("PRAGMA user_version = 1")
    connection.execute(
        "INSERT INTO gallery VALUES (1, 2, 40, 0, ?, ?, ?)",
        (json.dumps([NEW.fingerprint, OLD.fingerprint]), NEW.fingerprint, json.dumps(UPGRADE)),
    )
    connection.execute("INSERT INTO settings VALUES ('quantise', 'int8')")
    for number, space in ((1, OLD), (2, NEW)):
        connection.execute(
            "INSERT INTO spaces (fingerprint, json) VALUES (?, ?)",
            (space.fingerprint, space.to_json()),
        )
        connection.execute(
            f"CREATE TABLE vectors_{number} (sequence INTEGER PRIMARY KEY, item INTEGER NOT NULL "
            "UNIQUE REFERENCES items ON DELETE CASCADE, vector BLOB NOT NULL "
            f"CHECK (length(vector) = {4 * space.dim}))"
        )
    _fill(connection.execute, mark="?", prefix="")
    connection.execute("INSERT INTO gone VALUES (30, 4)")
    connection.close()


def old_tables(url: str, table: str) -> None:
    prefix = f"{table}_"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        for statement in POSTGRESQL.format(p=prefix).split(";"):
            if statement.strip():
                connection.execute(statement.encode())
        connection.execute(
            f"INSERT INTO {prefix}gallery VALUES (1, 2, %s, %s, %s, %s)".encode(),
            (
                json.dumps([NEW.fingerprint, OLD.fingerprint]),
                NEW.fingerprint,
                json.dumps(UPGRADE),
                json.dumps({"partitions": "2"}),
            ),
        )
        for number, space in ((1, OLD), (2, NEW)):
            connection.execute(
                f"INSERT INTO {prefix}spaces (fingerprint, json) VALUES (%s, %s)".encode(),
                (space.fingerprint, space.to_json()),
            )
            name = f"{prefix}vectors_{number}"
            connection.execute(
                f"CREATE TABLE {name} (item bigint PRIMARY KEY REFERENCES {prefix}items "
                f"ON DELETE CASCADE, vector vector({space.dim}) NOT NULL) "
                "PARTITION BY HASH (item)".encode()
            )
            for part in range(2):
                connection.execute(
                    f"CREATE TABLE {name}_{part} PARTITION OF {name} FOR VALUES WITH "
                    f"(MODULUS 2, REMAINDER {part})".encode()
                )
        connection.execute(f"SELECT nextval('{prefix}sequence')".encode())  # as each write did
        _fill(
            lambda statement, values: connection.execute(statement.encode(), values),
            mark="%s",
            prefix=prefix,
        )


def _fill(run: Any, *, mark: str, prefix: str) -> None:
    def insert(table: str, columns: str, *values: Any) -> None:
        marks = ", ".join([mark] * len(values))
        run(f"INSERT INTO {prefix}{table} ({columns}) VALUES ({marks})", values)

    sqlite = mark == "?"
    for number, id in enumerate([*IDS[:3], "gone", *IDS[3:]], start=1):
        revision = 2 if id == "i4" else 1
        columns = "id, uri, payload, revision, created, changed"
        values = [id, f"{id}.jpg", json.dumps({"n": number}), revision, 100.0 + number, 200.0]
        if sqlite:
            columns, values = f"{columns}, sequence", [*values, number]
        insert("items", columns, *values)
    run(f"DELETE FROM {prefix}items WHERE id = 'gone'", ())
    rows = {id: number for number, id in enumerate([*IDS[:3], "gone", *IDS[3:]], start=1)}
    for table, space, ids in ((1, OLD, IDS), (2, NEW, IDS[:2])):
        for place, (id, vector) in enumerate(
            zip(ids, embed(ids, space).vectors, strict=True), start=10 * table
        ):
            if sqlite:
                columns, values = "sequence, item, vector", [place, rows[id], vector.tobytes()]
            else:
                columns, values = "item, vector", [rows[id], str(vector.tolist())]
            insert(f"vectors_{table}", columns, *values)
    for id, priority, due, worker, attempts, failed, reason in (
        ("i2", 0.0, 0.0, None, 3, True, "no such file"),
        ("i3", 2.0, 1e12, "w", 0, False, ""),
        ("i4", 5.0, 0.0, None, 1, False, "slow"),
        ("i5", 7.0, 0.0, None, 0, False, ""),
    ):
        columns = "item, priority, due, worker, attempts, failed, reason, moment"
        values = [rows[id], priority, due, worker, attempts, failed, reason, 9.0]
        insert("work", columns, *values)
    for what in ("create", "upgrade start"):
        insert("trail", "moment, who, what, details", 7.0, "ann", what, json.dumps({"x": 1.5}))
