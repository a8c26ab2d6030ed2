"""Keeps a process's mirror in step with the file, whoever writes to it."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from midspan.gallery.index.layout import Layout
from midspan.gallery.index.mirror import Mirror
from midspan.gallery.index.upkeep import Upkeep
from midspan.gallery.scores import prepare
from midspan.gallery.stores.sqlite.database import Database
from midspan.gallery.stores.sqlite.rows import as_matrix
from midspan.gallery.stores.sqlite.settings import read_quantise
from midspan.gallery.stores.sqlite.texts import Texts
from midspan.spaces import FloatArray, IntArray, Space

FETCH = 4096  # rows read at once
FORGET = 10_000  # changed items beyond which all texts are forgotten


class _Now(NamedTuple):
    """What the file says of the gallery as a whole."""

    version: int  # of the state
    preference: tuple[int, ...]
    keep: frozenset[int]  # spaces whose vectors are held here
    spaces: Mapping[int, Space]
    layout: Layout


class Follower:
    """`catch_up` before each search: what was acknowledged before is then in the mirror."""

    def __init__(self, database: Database, texts: Texts) -> None:
        self._database, self._texts = database, texts
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._mirror = Mirror()
        self._upkeep = Upkeep(self._mirror)
        self._seen_commits = -1  # before what is in the mirror was read
        self._sequence = -1
        self._extra: frozenset[int] = frozenset()  # spaces that are not live but were asked for

    def catch_up(self, commits: int, *, wanted: frozenset[int] = frozenset()) -> Mirror:
        """At least to this value of `Database.commits`, as it was read before the call.

        `wanted` are spaces that the next search needs, live or not.
        """
        mirror = self._mirror
        if commits == self._seen_commits and wanted <= mirror.tracked.keys():
            return mirror  # nobody wrote: the way of nearly all searches
        with self._lock, self._database.errors():
            self._database.check_open()
            if self._connection is None:
                self._connection = self._database.connect()
            if not wanted <= self._mirror.tracked.keys():
                self._extra |= wanted
                self._seen_commits = -1
            if commits != self._seen_commits:
                self._connection.execute("BEGIN")
                try:
                    self._read(self._connection)
                except BaseException:
                    self._sequence = -1  # half of it may be done: begin anew next time
                    raise
                finally:
                    self._connection.execute("ROLLBACK")
                self._seen_commits = commits
                self._upkeep.wake()
            return self._mirror

    def optimise(self) -> None:
        self.catch_up(self._database.commits())
        self._upkeep.run()

    def close(self) -> None:
        self._upkeep.stop()

    def _read(self, connection: sqlite3.Connection) -> None:
        version, sequence, floor, live = connection.execute(
            "SELECT version, sequence, floor, live FROM gallery"
        ).fetchone()
        spaces, numbers = {}, {}
        for number, fingerprint, text in connection.execute(
            "SELECT number, fingerprint, json FROM spaces"
        ):
            spaces[number], numbers[fingerprint] = Space.from_json(text), number
        preference = tuple(numbers[fingerprint] for fingerprint in json.loads(live))
        self._extra = (self._extra & spaces.keys()) - set(preference)
        keep = frozenset(preference) | self._extra
        layout = Layout(read_quantise(connection), self._database.path.absolute().parent)
        now = _Now(version, preference, keep, spaces, layout)
        if self._sequence < floor:  # too far behind, or at the very beginning
            self._load(connection, now)
        else:
            if layout != self._mirror.layout:
                with self._mirror.lock.exclusive:
                    self._mirror.lay_out(layout)
            self._update(connection, now)
        self._sequence = sequence

    def _load(self, connection: sqlite3.Connection, now: _Now) -> None:
        """Everything, into a new mirror; searches that are under way finish on the old one."""
        self._texts.forget(None)
        self._upkeep.stop()
        mirror = Mirror(now.layout)
        for number in [*now.preference, *sorted(now.keep - set(now.preference))]:
            mirror.track(number, now.spaces[number])
        mirror.preference, mirror.version = now.preference, now.version
        for number in list(mirror.tracked):
            for items, vectors in _vectors(connection, number, now.spaces[number], since=0):
                mirror.arrived(number, items, vectors)
        self._mirror, self._upkeep = mirror, Upkeep(mirror)

    def _update(self, connection: sqlite3.Connection, now: _Now) -> None:
        """What came since. Replacements in one step: no search may see half of one."""
        mirror, since = self._mirror, self._sequence
        known = [number for number in mirror.tracked if number in now.spaces]
        rows = connection.execute("SELECT item FROM gone WHERE sequence > ?", (since,)).fetchall()
        gone = np.array(rows, dtype=np.int64).ravel()
        self._forget_texts(connection, gone)
        replaced = []
        for number in known:
            for items, vectors in _vectors(connection, number, now.spaces[number], since=since):
                again = np.isin(items, gone)
                replaced.append((number, items[again], vectors[again]))
                with mirror.lock.exclusive:
                    mirror.arrived(number, items[~again], vectors[~again])
        for number in sorted(now.keep - set(known)):  # not live in the mirror yet: nobody sees them
            with mirror.lock.exclusive:
                mirror.track(number, now.spaces[number])
            for items, vectors in _vectors(connection, number, now.spaces[number], since=0):
                with mirror.lock.exclusive:
                    mirror.arrived(number, items, vectors)
        with mirror.lock.exclusive:
            if len(gone):
                mirror.gone(gone, spaces=known)
            for number, items, vectors in replaced:
                mirror.arrived(number, items, vectors)
            if now.preference != mirror.preference or now.keep != mirror.tracked.keys():
                mirror.prefer(now.preference, keep=now.keep)
            mirror.version = now.version

    def _forget_texts(self, connection: sqlite3.Connection, gone: IntArray) -> None:
        changed = connection.execute(
            "SELECT item FROM items WHERE sequence > ? LIMIT ?", (self._sequence, FORGET + 1)
        ).fetchall()
        many = len(changed) + len(gone) > FORGET
        self._texts.forget(None if many else [*gone.tolist(), *(item for (item,) in changed)])


def _vectors(
    connection: sqlite3.Connection, number: int, space: Space, *, since: int
) -> Iterator[tuple[IntArray, FloatArray]]:
    """(items, prepared vectors) that were written after `since`, in parts."""
    cursor = connection.execute(
        f"SELECT item, vector FROM vectors_{number} WHERE sequence > ? ORDER BY sequence", (since,)
    )
    while rows := cursor.fetchmany(FETCH):
        items = np.fromiter((item for item, _ in rows), dtype=np.int64, count=len(rows))
        vectors = as_matrix([vector for _, vector in rows], space.dim)
        yield items, prepare(vectors, metric=space.metric)
