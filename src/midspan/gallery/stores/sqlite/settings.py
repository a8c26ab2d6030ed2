"""What its owner chose about a gallery, beside its state. A file of before has no such table."""

from __future__ import annotations

import sqlite3

from midspan.gallery.quantise import Quantise, check_quantise

TABLE = "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)"


def read_quantise(connection: sqlite3.Connection) -> Quantise:
    there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'settings'").fetchone()
    if there is None:
        return "none"
    row = connection.execute("SELECT value FROM settings WHERE name = 'quantise'").fetchone()
    return "none" if row is None else check_quantise(row[0])


def write_quantise(connection: sqlite3.Connection, value: Quantise) -> None:
    connection.execute(TABLE)
    connection.execute("INSERT OR REPLACE INTO settings VALUES ('quantise', ?)", (value,))
