"""What a process knows of the vectors: segments and views, kept in step with the file."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.dialects import sqlite

from midspan.errors import StateChanged
from midspan.gallery.catalogue.sqlite import Sqlite
from midspan.gallery.catalogue.tables import Tables
from midspan.gallery.catalogue.where import where
from midspan.gallery.engines.base import prepare
from midspan.gallery.engines.embedded import tables
from midspan.gallery.engines.embedded.segment import Segment, View, advance_view, make_view
from midspan.gallery.engines.embedded.snapshot import DamagedSnapshot, IndexSnapshot
from midspan.gallery.engines.embedded.tables import SpaceRecord
from midspan.gallery.filters import Filter
from midspan.spaces import FloatArray, IntArray

log = logging.getLogger(__name__)

Key = tuple[int, frozenset[int]]  # a space, and those that are better

_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class LoadedVectors:
    """The vectors as of one change; never changed itself, but for views that are added."""

    sequence: int
    segments: Mapping[int, Segment]
    views: dict[Key, View] = field(default_factory=dict)

    def view(self, number: int, better: Sequence[int]) -> View:
        key = number, frozenset(better)
        view = self.views.get(key)
        if view is None:
            others = [self.segments[one] for one in better]
            view = self.views[key] = make_view(self.segments[number], others)
        return view


class VectorReplica:
    """`catch_up` before each search: what was committed before is then known."""

    def __init__(self, database: Sqlite, folder: Callable[[], Path]) -> None:
        self._database, self._folder = database, folder
        self._lock = threading.Lock()
        self._known = LoadedVectors(-1, {})
        self._commits = -1
        self.damaged: set[str] = set()  # tokens of snapshots that cannot be used

    @property
    def known(self) -> LoadedVectors:
        return self._known

    def catch_up(self, numbers: Sequence[int]) -> LoadedVectors:
        """At least to the last commit before the call, with the segments of these spaces."""
        commits = self._database.commits()
        known = self._known
        if commits == self._commits and all(number in known.segments for number in numbers):
            return known  # nobody wrote: the way of nearly all searches
        with self._lock:
            known = self._known
            if commits != self._commits or any(n not in known.segments for n in numbers):
                with raw_reading(self._database) as connection:
                    self._known = self._read(connection, set(numbers))
                self._commits = commits
            return self._known

    def give_up(self, token: str) -> None:
        """This snapshot is damaged: go without it."""
        with self._lock:
            self.damaged.add(token)
            kept = {
                number: segment
                for number, segment in self._known.segments.items()
                if segment.snapshot is None or segment.snapshot.record.token != token
            }
            self._known, self._commits = LoadedVectors(self._known.sequence, kept), -1

    def _read(self, connection: sqlite3.Connection, numbers: set[int]) -> LoadedVectors:
        before, state = self._known, tables.read_state(connection)
        if unknown := numbers - state.spaces.keys():
            raise StateChanged(
                f"the gallery has no space of number {min(unknown)} any more; repeat the search"
            )
        new = numbers - before.segments.keys()
        if state.sequence == before.sequence and not new:
            return before
        listed = before.sequence >= state.floor
        gone = tables.deleted_after(connection, before.sequence) if listed else _NO_ROWS
        segments: dict[int, Segment] = {}
        arrived: dict[int, IntArray] = {}
        valid = listed
        for number, segment in before.segments.items():
            if number not in state.spaces:
                valid = False
                continue
            registered = state.spaces[number]
            if not listed or self._token(registered) != _token_of(segment):
                segments[number] = self._load(connection, number, registered, state.floor)
                valid = False
                continue
            parts = tables.vectors_after(connection, number, before.sequence, dim=segment.space.dim)
            rows, vectors = _together(parts, segment)
            segments[number] = segment.change(gone=gone, rows=rows, vectors=vectors)
            if len(rows):
                arrived[number] = rows
        for number in new:
            segments[number] = self._load(connection, number, state.spaces[number], state.floor)
        views = {}
        if valid:
            for (number, better), view in list(before.views.items()):
                others = [segments[one] for one in better]
                views[number, better] = advance_view(view, segments[number], others, arrived)
        return LoadedVectors(state.sequence, segments, views)

    def _token(self, registered: SpaceRecord) -> str | None:
        record = registered.snapshot
        return None if record is None or record.token in self.damaged else record.token

    def _load(
        self, connection: sqlite3.Connection, number: int, registered: SpaceRecord, floor: int
    ) -> Segment:
        """The snapshot, and what was written after it; all of it without one."""
        snapshot = None
        space, record = registered
        if record is not None and record.token not in self.damaged:
            try:
                snapshot = IndexSnapshot(self._folder(), number, record, space)
            except DamagedSnapshot as error:
                log.warning("an index of %s cannot be used: %s", self._database.path, error)
                self.damaged.add(record.token)
        segment = Segment.begin(number, space, snapshot)
        since = -1 if snapshot is None else snapshot.record.sequence
        if snapshot is None:
            segment.tail.reserve(tables.count(connection, number))
        for rows, vectors in tables.vectors_after(connection, number, since, dim=space.dim):
            prepared = prepare(vectors, metric=space.metric)
            segment = segment.change(gone=_NO_ROWS, rows=rows, vectors=prepared)
        if snapshot is None:
            return segment
        if since < floor:
            return segment.without(tables.all_rows(connection, number))
        gone = tables.deleted_after(connection, since)
        return segment.change(
            gone=gone, rows=_NO_ROWS, vectors=np.empty((0, space.dim), dtype=np.float32)
        )


def _token_of(segment: Segment) -> str | None:
    return None if segment.snapshot is None else segment.snapshot.record.token


def _together(
    parts: Iterator[tuple[IntArray, FloatArray]], segment: Segment
) -> tuple[IntArray, FloatArray]:
    space = segment.space
    every = [(rows, prepare(vectors, metric=space.metric)) for rows, vectors in parts]
    if not every:
        return _NO_ROWS, np.empty((0, space.dim), dtype=np.float32)
    if len(every) == 1:
        return every[0]
    rows, vectors = zip(*every, strict=True)
    return np.concatenate(rows), np.concatenate(vectors)


@contextmanager
def raw_reading(database: Sqlite) -> Iterator[sqlite3.Connection]:
    """The driver's connection in one reading transaction."""
    with database.reading() as connection:
        yield driver(connection)


def driver(connection: object) -> sqlite3.Connection:
    raw = connection.connection.driver_connection  # type: ignore[attr-defined]
    assert isinstance(raw, sqlite3.Connection)
    return raw


# ---- rows that pass a filter, as of one change; only changed items are read again ----------------

KEPT = 32  # filters
VIEWS = 4  # whose slots are remembered with each


@dataclass(frozen=True, slots=True)
class FilterMatch:
    commits: int  # SQLite's counter, before it was read
    items_sequence: int  # of the last write to the gallery that was read
    vectors_sequence: int  # of the change of vectors that goes with it
    rows: IntArray  # sorted
    _slots: dict[int, tuple[View, IntArray]] = field(default_factory=dict)

    def slots(self, view: View) -> IntArray:
        """Sorted slots of the view that count and pass."""
        known = self._slots.get(id(view))
        if known is not None and known[0] is view:
            return known[1]
        slots = _slots(view.segment, self.rows)
        if view.excluded is not None:
            slots = slots[~view.excluded[slots]]
        if len(self._slots) >= VIEWS:
            self._slots.clear()
        self._slots[id(view)] = (view, slots)
        return slots


def _slots(segment: Segment, rows: IntArray) -> IntArray:
    slots = segment.slots(rows)
    return np.sort(slots[slots >= 0])


class FilterCache:
    """By filter; memory follows the rows that pass and exist."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._lock = threading.Lock()
        self._known: OrderedDict[str, FilterMatch] = OrderedDict()

    def remembered(self, filter: Filter, commits: int) -> FilterMatch | None:
        """If nobody wrote since."""
        known = self._known.get(repr(filter))  # unlike ==, it distinguishes true from 1
        return known if known is not None and known.commits == commits else None

    def read(self, connection: sqlite3.Connection, filter: Filter, commits: int) -> FilterMatch:
        """As of the connection's transaction. Only items changed since the last time are read."""
        key = repr(filter)
        before = self._known.get(key)
        vectors, items = connection.execute(
            "SELECT v.sequence, g.sequence FROM vector_state AS v, gallery AS g"
        ).fetchone()
        if before is None or before.items_sequence != items:
            now = FilterMatch(commits, items, vectors, self._read(connection, filter, before))
        else:  # the same, with the slots that were looked up
            now = FilterMatch(commits, items, vectors, before.rows, before._slots)
        with self._lock:
            self._known[key] = now
            self._known.move_to_end(key)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return now

    def _read(
        self, connection: sqlite3.Connection, filter: Filter, before: FilterMatch | None
    ) -> IntArray:
        condition = func.coalesce(where(filter, self._tables), False)
        items = self._tables.items
        if before is None:
            statement = select(items.c.row).where(condition).order_by(items.c.row)
            selected = _run(connection, statement)
            return np.fromiter((row for (row,) in selected), dtype=np.int64)
        statement = select(items.c.row, condition).where(items.c.sequence > before.items_sequence)
        changed = np.array(_run(connection, statement).fetchall(), dtype=np.int64).reshape(-1, 2)
        rows = _without(before.rows, changed[:, 0])
        rows = np.union1d(rows, changed[changed[:, 1] == 1, 0])
        return _without(rows, self._deleted(connection, before))

    def _deleted(self, connection: sqlite3.Connection, before: FilterMatch) -> IntArray:
        """Deleted rows are in no view: they only take memory here."""
        rows = connection.execute(
            "SELECT row FROM vector_deletions WHERE sequence > ?", (before.vectors_sequence,)
        ).fetchall()
        return np.array(rows, dtype=np.int64).reshape(-1)


def _without(rows: IntArray, others: IntArray) -> IntArray:
    if not len(others) or not len(rows):
        return rows
    kept: IntArray = rows[~np.isin(rows, others)]
    return kept


def _run(connection: sqlite3.Connection, statement: object) -> sqlite3.Cursor:
    compiled = statement.compile(  # type: ignore[attr-defined]
        dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True}
    )
    values = [compiled.params[name] for name in compiled.positiontup or ()]
    return connection.execute(str(compiled), values)
