"""An open gallery: its catalogue, its engine, the order of writes, maintenance.

Several `Gallery` objects may share one (each acting under another name).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from sqlalchemy import Connection, func, select

from midspan.errors import GalleryError, StateChanged, UnknownId
from midspan.gallery import rules
from midspan.gallery.adoption.binding import SETTING
from midspan.gallery.catalogue import items
from midspan.gallery.catalogue.catalogue import FIRST_SPACE, Catalogue, check_engine
from midspan.gallery.catalogue.outbox import EngineQueue
from midspan.gallery.catalogue.where import index_payload, note_path
from midspan.gallery.engines import engine_class
from midspan.gallery.engines.base import Engine, IndexesPayloads, IndexStatus
from midspan.gallery.filters import Filter, Path
from midspan.gallery.location import Location
from midspan.gallery.maintenance import Maintenance
from midspan.gallery.records import AuditEvent, Counts, Item, Record
from midspan.gallery.routing import Query
from midspan.gallery.search import Searcher
from midspan.gallery.search_log import LatencyBeacon
from midspan.gallery.writing import ItemWriter, StateWriter
from midspan.spaces import Embeddings, Space

log = logging.getLogger("midspan.gallery")

READS = 8  # times that a reader looks again because a space was dropped meanwhile


class Session:
    def __init__(self, location: Location, catalogue: Catalogue, engine: Engine) -> None:
        self.location, self.catalogue, self.engine = location, catalogue, engine
        self.replica: Session | None = None  # which answers searches, as of some moments ago
        self.queue = EngineQueue(catalogue, engine)
        self.items = ItemWriter(catalogue, engine, self.queue)
        self.states = StateWriter(catalogue, engine, self.queue)
        self.maintenance = Maintenance(self)
        path = catalogue.path
        self.beacon = None if path is None else LatencyBeacon(path)
        self.searcher = Searcher(
            catalogue, engine, maintenance=self.maintenance, beacon=self.beacon
        )

    @classmethod
    def create(
        cls, location: Location, space: Space, *, event: AuditEvent, settings: Mapping[str, str]
    ) -> Self:
        place = location.catalogue
        with Catalogue.creating(place, space, shown=location.shown) as catalogue:
            engine: Engine = engine_class(location.scheme).create(location, catalogue)
            kept = False
            try:
                if not engine.colocated:
                    engine.create_space(FIRST_SPACE, space)

                def then(connection: Connection) -> None:
                    if engine.colocated:
                        engine.create_space(FIRST_SPACE, space, connection=connection)

                catalogue.first_write(
                    space,
                    event=event,
                    settings={"engine": location.scheme, **engine.recorded, **settings},
                    then=then,
                )
                kept = place.path is None and not place.in_postgresql
            finally:
                if not kept:
                    engine.close()
        if kept:
            return cls(location, catalogue, engine)
        return cls.open(dataclasses.replace(location, read=None))  # which has no such table yet

    @classmethod
    def open(cls, location: Location) -> Self:
        kind = engine_class(location.scheme)
        if location.scheme == "memory":
            kind.open(location, None)
        catalogue = Catalogue.open(location.catalogue, shown=location.shown)
        try:
            settings = catalogue.settings()
            check_engine(settings, location.scheme, shown=location.shown)
            if SETTING in settings and not kind.colocated:  # over an application's collection
                from midspan.gallery.adoption.collection_engine import CollectionEngine

                kind = CollectionEngine
            engine = kind.open(location, catalogue)
        except BaseException:
            catalogue.close()
            raise
        session = cls(location, catalogue, engine)
        if location.read is not None:
            try:
                session.replica = cls.open(
                    dataclasses.replace(location, catalogue=location.read, read=None)
                )
            except BaseException:
                session.close()
                raise
            session.replica.maintenance.stop()  # it writes
            session.searcher.replica = session.replica.searcher
        return session

    def close(self) -> None:
        if self.replica is not None:
            self.replica.close()
        self.maintenance.stop()
        self.engine.close()  # ends a build, which the thread may be waiting for
        self.maintenance.close()
        if self.beacon is not None:
            self.beacon.close()
        self.catalogue.close()

    # ---- reading

    def count(self) -> Counts:
        with self.catalogue.reading() as connection:
            snapshot = self.catalogue.read(connection)
            return items.count_all(
                connection, self.catalogue.tables, snapshot.state, snapshot.numbers
            )

    def count_matching(self, filter: Filter | None) -> int:
        table = self.catalogue.tables.items
        statement = select(func.count()).select_from(table).where(self.catalogue.where(filter))
        with self.catalogue.reading() as connection:
            return int(connection.execute(statement).scalar_one())

    def get_many(self, ids: Sequence[str]) -> list[Item]:
        tables = self.catalogue.tables
        with self.catalogue.reading() as connection:
            numbers = self.catalogue.read(connection).numbers
            condition = items.one_of(tables, tables.items.c.id, rules.valid_ids(ids))
            by_row = items.read_items(connection, tables, numbers, condition)
        by_id = {item.id: item for item in by_row.values()}
        return [by_id[id] for id in ids if id in by_id]

    def scan(
        self, *, filter: Filter | None, missing: str | None, after: str, limit: int
    ) -> list[Item]:
        rules.check_limit(limit)
        with self.catalogue.reading() as connection:
            snapshot = self.catalogue.read(connection)
            if missing is not None:
                rules.known_space(snapshot.state, missing)
            return items.scan(
                connection,
                self.catalogue.tables,
                snapshot.numbers,
                filter=filter,
                missing=missing,
                after=after,
                limit=limit,
            )

    def vectors(self, ids: Sequence[str], *, space: str) -> Embeddings:
        """Of those that have a vector in the space, in the order asked for."""
        for attempt in range(READS):
            try:
                return self._vectors(ids, space)
            except StateChanged:
                if attempt == READS - 1:
                    raise
        raise AssertionError("unreachable")

    def _vectors(self, ids: Sequence[str], space: str) -> Embeddings:
        tables = self.catalogue.tables
        with self.catalogue.reading() as connection:
            snapshot = self.catalogue.read(connection)
            known = rules.known_space(snapshot.state, space)
            number = snapshot.numbers[space]
            rows = {id: one.row for id, one in items.find(connection, tables, ids).items()}
            having = items.presence(connection, tables, [number], list(rows.values()))
        chosen = {
            rows[id]: id for id in dict.fromkeys(ids) if id in rows and (number, rows[id]) in having
        }
        there, matrix = self.engine.fetch(number, np.array(list(chosen), dtype=np.int64))
        return Embeddings(
            ids=np.array([chosen[row] for row in there.tolist()], dtype=np.str_),
            vectors=matrix,
            space=known,
        )

    def stored_queries(self, item: Item) -> list[Query]:
        """The vectors of a stored item that ask for others like it; see Gallery.more_like."""
        state, shown = self.catalogue.snapshot().state, self.location.shown
        mine = next((space for space in state.live if space in item.spaces), None)
        if mine is None:
            raise UnknownId(f"{item.id!r:.80} has no live vector in {shown}")
        record = Record.of(state)
        used: tuple[str, ...] = (mine,)
        if record is not None and record.mode == "both" and record.old in item.spaces:
            used = (record.new, record.old) if record.new in item.spaces else (record.old,)
        queries = [self.vectors([item.id], space=one) for one in used]
        if not all(map(len, queries)):
            raise UnknownId(f"{item.id!r:.80} was deleted from {shown} concurrently")
        return [Query(one.space, one.vectors) for one in queries]

    # ---- indexes

    def index_payload(self, path: Path, *, who: str) -> None:
        event = AuditEvent(who=who, what="index payload", details={"path": list(path)})
        engine = self.engine if isinstance(self.engine, IndexesPayloads) else None
        in_catalogue = self.catalogue.dialect == "postgresql"
        if engine is None and not in_catalogue:
            reason = f"{self.location.scheme} has no indexes on payload fields; "
            if self.location.scheme == "embedded":
                reason = (
                    "a gallery in a file needs no indexes on payload fields: what passes a filter "
                    "is remembered, and only items that changed are read again; "
                )
            raise GalleryError(
                f"{self.location.shown}: {reason}they are for galleries in PostgreSQL, Qdrant or "
                "Milvus. Filters work without them"
            )
        if in_catalogue:
            index_payload(self.catalogue, path)
        if engine is not None:
            try:
                engine.index_payload(path)
            except GalleryError as error:
                if not in_catalogue:
                    raise
                log.warning("%s; the catalogue has the index", error)
        note_path(self.catalogue, path, event=event)

    def indexes_due(self) -> tuple[str, ...]:
        numbers = self.catalogue.snapshot().numbers
        return tuple(name for name, number in numbers.items() if self.engine.needs_index(number))

    def build_due_indexes(self) -> tuple[str, ...]:
        due, numbers = self.indexes_due(), self.catalogue.snapshot().numbers
        for fingerprint in due:
            if fingerprint in numbers:
                self.maintenance.build(numbers[fingerprint])
        return due

    def index_status(self) -> dict[str, IndexStatus]:
        snapshot = self.catalogue.snapshot()
        failures = self.catalogue.index_failures.read()
        statuses = {}
        for fingerprint, number in snapshot.numbers.items():
            status = self.engine.index_status(number)
            if number in failures and status.state != "building":
                message, moment = failures[number]
                status = dataclasses.replace(
                    status, state="failed", failure=message, failed_at=moment
                )
            statuses[fingerprint] = status
        return statuses
