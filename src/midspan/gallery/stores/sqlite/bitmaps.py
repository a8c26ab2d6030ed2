"""Which items pass a filter, remembered: asking SQLite for a million payloads takes a second."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict

import numpy as np

from midspan.gallery.filters import Filter
from midspan.gallery.index.shelf import BoolArray
from midspan.gallery.stores.sqlite.rows import read_sequence
from midspan.gallery.stores.sqlite.where import where

KEPT = 32  # filters


class Bitmaps:
    """By item number. Deleted items keep their bit: nothing else knows them any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[int, BoolArray]] = OrderedDict()  # sequence, bits

    def of(self, connection: sqlite3.Connection, filter: Filter) -> BoolArray:
        """As of the connection's snapshot. Only items changed since the last time are asked for."""
        key = repr(filter)  # unlike ==, it tells true from 1
        with self._lock:
            since, bits = self._known.get(key, (-1, np.zeros(0, dtype=bool)))
        sequence = read_sequence(connection)
        if since >= sequence:
            return bits
        condition, values = where(filter)
        rows = connection.execute(
            f"SELECT item, {condition} FROM items WHERE sequence > ?", (*values, since)
        ).fetchall()
        if rows:
            items, passes = np.array(rows, dtype=np.int64).T
            longer = np.zeros(max(len(bits), int(items.max()) + 1), dtype=bool)
            longer[: len(bits)] = bits
            longer[items] = passes.astype(bool)
            bits = longer
        with self._lock:
            self._known[key] = (sequence, bits)
            self._known.move_to_end(key)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return bits
