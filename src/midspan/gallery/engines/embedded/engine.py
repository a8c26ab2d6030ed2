"""`shop.midspan`: vectors in the catalogue's SQLite file, searched in this process.

The file is the record. A process searches snapshots that are mapped from `shop.midspan-index/` and
a tail of later vectors in memory, which it brings up to date before each search. There is one
segment for each space: an upgrade, its old clients and a rollback only differ in the masks.
"""

from __future__ import annotations

import dataclasses
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from midspan.errors import FormatError, StateChanged, StoreError
from midspan.gallery.catalogue.sqlite import Sqlite, connect
from midspan.gallery.engines.base import Candidates, IndexStatus, SearchRequest, prepare
from midspan.gallery.engines.embedded import build, tables
from midspan.gallery.engines.embedded.replica import (
    FilterCache,
    FilterMatch,
    LoadedVectors,
    VectorReplica,
    driver,
    raw_reading,
)
from midspan.gallery.engines.embedded.search import FilteredView, search
from midspan.gallery.engines.embedded.segment import Tail, View
from midspan.gallery.engines.embedded.snapshot import (
    DamagedSnapshot,
    IndexSnapshot,
    building,
    remove_others,
    remove_spaces,
)
from midspan.gallery.engines.embedded.tables import SnapshotRecord
from midspan.gallery.filters import Filter
from midspan.spaces import FloatArray, IntArray, Space

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from midspan.gallery.catalogue.catalogue import Catalogue
    from midspan.gallery.catalogue.tables import Tables
    from midspan.gallery.location import Location

log = logging.getLogger(__name__)

FOLD = 512  # vectors of a tail outside of its lists that make it worth to bring them in
FREE = 0.25  # share of the file that is not in use, above which it is made smaller
TRIES = 5  # to read a filter and the vectors at the same change


class EmbeddedEngine:
    colocated = True
    recorded: Mapping[str, str] = {}

    def __init__(
        self, database: Sqlite, catalogue: Tables, *, flat_up_to: int | None = None
    ) -> None:
        self._database = database
        self._flat_up_to = build.FLAT_UP_TO if flat_up_to is None else flat_up_to
        self._replica = VectorReplica(database, self._folder)
        self._passing = FilterCache(catalogue)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="gallery lists")
        self._folding: set[int] = set()  # tails
        self._closed = threading.Event()
        self._failures: dict[int, tuple[str, float]] = {}
        self._building: set[int] = set()
        self._verified: set[str] = set()  # tokens
        self._answers: dict[int, tuple[int, bool]] = {}  # needs_index: commits, answer

    @classmethod
    def open(cls, location: Location, catalogue: Catalogue) -> Self:
        engine = cls.create(location, catalogue)
        engine._register(catalogue.snapshot().spaces)
        return engine

    @classmethod
    def create(cls, location: Location, catalogue: Catalogue) -> Self:
        assert isinstance(catalogue.database, Sqlite)
        return cls(catalogue.database, catalogue.tables)

    def _register(self, spaces: Mapping[int, Space]) -> None:
        """A gallery of the first format has vectors, but no record of ours."""
        with raw_reading(self._database) as raw:
            known = tables.read_state(raw).spaces.keys()
        if spaces.keys() <= known:
            return
        with self._writing(None) as raw:
            for number, space in spaces.items():
                if number not in tables.read_state(raw).spaces:
                    tables.create_space(raw, number, space)

    def close(self) -> None:
        """Ends a build that is under way."""
        self._closed.set()
        self._background.shutdown(wait=True, cancel_futures=True)

    # ---- spaces and vectors

    def create_space(
        self, number: int, space: Space, *, connection: Connection | None = None
    ) -> None:
        with self._writing(connection) as raw:
            tables.create_space(raw, number, space)

    def drop_space(self, number: int, *, connection: Connection | None = None) -> None:
        with self._writing(connection) as raw:
            tables.drop_space(raw, number)

    def put(
        self,
        number: int,
        rows: IntArray,
        vectors: FloatArray,
        *,
        payloads: Sequence[str] | None = None,
        connection: Connection | None = None,
    ) -> None:
        del payloads  # filters read the catalogue
        with self._writing(connection) as raw:
            tables.put(raw, number, rows, vectors)

    def delete(self, rows: IntArray, *, connection: Connection | None = None) -> None:
        with self._writing(connection) as raw:
            tables.delete(raw, rows)

    def supersede(self, number: int, rows: IntArray, *, by: int) -> None:
        """Nothing to do: a search sees what better spaces hold."""

    def set_payload(self, payloads: Mapping[int, str]) -> None:
        """Nothing to do: filters read the catalogue."""

    def fetch(self, number: int, rows: IntArray) -> tuple[IntArray, FloatArray]:
        with self._reading(number) as (raw, space):
            return tables.fetch(raw, number, rows, dim=space.dim)

    def rows(self, number: int, *, after: int, limit: int) -> IntArray:
        with self._reading(number) as (raw, _):
            return tables.rows_after(raw, number, after, limit)

    def count(self, number: int) -> int:
        with self._reading(number) as (raw, _):
            return tables.count(raw, number)

    # ---- search

    def search(self, request: SearchRequest) -> list[Candidates]:
        known, passing = self._state(request.live, request.filter)
        scopes, better = [], list[int]()
        for number in request.live:
            if number in request.among:
                view = known.view(number, better)
                slots = None if passing is None else passing.slots(view)
                scopes.append(FilteredView(view, slots))
                self._keep_up(view)
            better.append(number)
        metric = scopes[0].view.segment.space.metric
        queries = prepare(request.vectors, metric=metric)
        return search(scopes, queries, k=request.k, metric=metric, exact=request.exact)

    def _state(
        self, live: Sequence[int], filter: Filter | None
    ) -> tuple[LoadedVectors, FilterMatch | None]:
        if filter is None:
            return self._replica.catch_up(live), None
        for _ in range(TRIES):
            commits = self._database.commits()
            passing = self._passing.remembered(filter, commits)
            if passing is None:
                with raw_reading(self._database) as raw:
                    passing = self._passing.read(raw, filter, commits)
            known = self._replica.catch_up(live)
            if known.sequence == passing.vectors_sequence:
                return known, passing
        raise StateChanged("the gallery changes faster than it can be read; repeat the search")

    def _keep_up(self, view: View) -> None:
        """Lists that have fallen behind are completed by a thread; searches scan meanwhile."""
        tail = view.segment.tail
        behind = tail.blank is not None and tail.count - tail.listed >= FOLD
        if behind and id(tail) not in self._folding:
            self._folding.add(id(tail))
            self._later(lambda: self._fold(tail))
        if view.reducible:
            view.reduction.pending = True
            self._later(lambda: self._reduce(view))

    def _later(self, work: Callable[[], None]) -> None:
        if not self._closed.is_set():
            self._background.submit(work)

    def _fold(self, tail: Tail) -> None:
        try:
            tail.fold()
        except (MemoryError, RuntimeError) as error:
            log.warning("%s: new vectors stay outside of the lists: %s", self._shown, error)
        finally:
            self._folding.discard(id(tail))

    def _reduce(self, view: View) -> None:
        try:
            view.reduce()
        except (MemoryError, RuntimeError) as error:
            log.warning("%s: lists cannot be made smaller: %s", self._shown, error)
        finally:
            view.reduction.pending = False

    # ---- index

    def needs_index(self, number: int) -> bool:
        commits = self._database.commits()
        known = self._answers.get(number)
        if known is not None and known[0] == commits:
            return known[1]
        with raw_reading(self._database) as raw:
            state = self._registered(raw, number)
            answer = self._reason(raw, state, number) is not None
        self._answers[number] = commits, answer
        return answer

    def _reason(
        self, raw: sqlite3.Connection, state: tables.EngineState, number: int
    ) -> str | None:
        reason = build.reason_to_build(raw, state, number, flat_up_to=self._flat_up_to)
        if reason is not None:
            return reason
        record = state.spaces[number].snapshot
        if record is not None and not self._sound(number, record, state.spaces[number].space):
            return "damaged"
        return "calibration" if build.unjudged(raw, state, number) else None

    def _sound(self, number: int, record: SnapshotRecord, space: Space) -> bool:
        """Every byte of a snapshot is checked once in the life of a process."""
        if record.token in self._verified:
            return True
        try:
            IndexSnapshot(self._folder(), number, record, space).verify()
        except DamagedSnapshot as error:
            log.warning("%s: an index is damaged and will be built again: %s", self._shown, error)
            self._replica.give_up(record.token)
            return False
        self._verified.add(record.token)
        return True

    def build_index(self, number: int) -> None:
        self._building.add(number)
        try:
            with building(self._folder(), number):
                self._check_open()
                self._build(number)
        except (OSError, MemoryError, RuntimeError) as error:
            what = "out of memory" if isinstance(error, MemoryError) else str(error)
            failure = f"{self._shown}: the index was not built ({what}); searches compare more"
            self._failures[number] = failure, time.time()
            raise StoreError(failure) from error
        except (StoreError, FormatError) as error:
            self._failures[number] = str(error), time.time()
            raise
        finally:
            self._building.discard(number)
        self._failures.pop(number, None)

    def _build(self, number: int) -> None:
        """Under the lock: another process may have done it while we waited."""
        folder = self._folder()
        with raw_reading(self._database) as raw:
            state = self._registered(raw, number)
            reason = self._reason(raw, state, number)
            space, record = state.spaces[number]
            count = tables.count(raw, number)
            large = build.is_large(state, number, count, flat_up_to=self._flat_up_to)
        if reason is None:
            return
        former = None
        if record is not None and reason != "damaged":
            try:
                former = IndexSnapshot(folder, number, record, space)
            except DamagedSnapshot:
                former = None
        new: SnapshotRecord | None = None
        if reason == "calibration" and former is not None:
            calibration = build.judge(
                self._database,
                number,
                state,
                former.ivf,
                rows=former.rows,
                vectors=former.vectors,
            )
            new = dataclasses.replace(
                former.record,
                probes=calibration.probes,
                oversampling=calibration.oversampling,
                judged=calibration.judged,
                recall=calibration.recall,
            )
        elif large:
            new = build.build_snapshot(
                self._database, folder, number, former, check=self._check_open
            )
        with self._writing(None) as raw:
            there = tables.set_snapshot(raw, number, new)
        remove_others(folder, number, keep=new.token if new is not None and there else None)
        if new is not None:
            self._verified.add(new.token)
        if number in self._replica.known.segments and there:
            self._replica.catch_up([number])  # here, rather than in somebody's search

    def index_status(self, number: int) -> IndexStatus:
        with raw_reading(self._database) as raw:
            state = self._registered(raw, number)
            record = state.spaces[number].snapshot
            count = tables.count(raw, number)
            tail = count if record is None else tables.count(raw, number, after=record.sequence)
        failure, failed_at = self._failures.get(number, (None, None))
        if number in self._building:
            built = "building"
        elif failure is not None:
            built = "failed"
        elif record is not None:
            built = "ready"
        else:
            built = "none"
        return IndexStatus(
            rows=count,
            kind="flat" if record is None else "ivf",
            state=built,  # type: ignore[arg-type]
            unindexed=tail,
            recall=None if record is None else record.recall,
            failure=failure,
            failed_at=failed_at,
        )

    def vacuum(self) -> None:
        with raw_reading(self._database) as raw:
            known = set(tables.read_state(raw).spaces)
        if self._folder().is_dir():
            remove_spaces(self._folder(), known=known)
        with self._database.errors():
            connection = connect(self._database.path)
            try:
                free, pages = (
                    connection.execute(f"PRAGMA {name}").fetchone()[0]
                    for name in ("freelist_count", "page_count")
                )
                if free > FREE * pages:  # it writes the whole file again
                    connection.execute("VACUUM")
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.close()

    # ---- the file

    @property
    def _shown(self) -> str:
        return self._database.shown

    def _folder(self) -> Path:
        assert self._database.path is not None
        return Path(f"{self._database.path}-index")

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise StoreError(f"{self._shown}: this gallery is closed")

    @contextmanager
    def _writing(self, connection: Connection | None) -> Iterator[sqlite3.Connection]:
        if connection is not None:
            with self._database.errors():
                yield driver(connection)
            return
        with self._database.writing() as own:
            yield driver(own)

    @contextmanager
    def _reading(self, number: int) -> Iterator[tuple[sqlite3.Connection, Space]]:
        with raw_reading(self._database) as raw:
            yield raw, self._registered(raw, number).spaces[number].space

    def _registered(self, raw: sqlite3.Connection, number: int) -> tables.EngineState:
        state = tables.read_state(raw)
        if number not in state.spaces:
            raise StateChanged(f"{self._shown} has no space of number {number}")
        return state
