"""`postgresql://…?table=shop`: vectors next to their catalogue, in PostgreSQL with pgvector.

A space is a table of its own (row, vector), or several partitions of one. It is filled without an
index, which is many times faster, and gets HNSW when it has grown large. Rows are never updated by
an upgrade: a search leaves out those that have a vector in a better space's table.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sqlalchemy import Connection

from midspan.errors import StateChanged, StoreError
from midspan.gallery.adoption.binding import SETTING, TableBinding
from midspan.gallery.engines.base import Candidates, IndexStatus, SearchRequest
from midspan.gallery.engines.pgvector_index import AdoptedColumns, HnswBuilder, vector_table
from midspan.gallery.engines.pgvector_search import PgvectorSearcher, from_binary
from midspan.gallery.location import LocationSettings, check_created_with
from midspan.spaces import FloatArray, IntArray, Space

if TYPE_CHECKING:
    from midspan.gallery.catalogue.catalogue import Catalogue
    from midspan.gallery.location import Location

OLDEST = (0, 8)  # the pgvector that brought iterative scans, without which filters lose hits
PLAIN_BYTES = 7800  # longer vectors do not fit into a page and are stored aside
PATIENCE_SECONDS = 30.0  # with an application's transactions on an adopted table
COPY_ROWS = 8192  # sent at once
DROP_SECONDS = 20.0  # that a DROP tries to get its lock
DROP_WAIT = "250ms"  # of each try: readers that come later wait behind it for as long
COPY_HEAD = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
COPY_END = struct.pack(">h", -1)


class PgvectorEngine:
    colocated = True

    def __init__(
        self, location: Location, catalogue: Catalogue, *, created_with: Mapping[str, str]
    ):
        shown = location.shown
        check_created_with(location.settings, created_with, shown=shown)
        settings = LocationSettings({**created_with, **location.settings}, shown=shown)
        self._partitions = settings.whole("partitions", 0, 0, 1024, record=True)
        kind = settings.choice("index", ("vector", "halfvec"), "vector", record=True)
        settings.finish()
        self.recorded: Mapping[str, str] = settings.recorded
        self._catalogue = catalogue
        assert location.catalogue.url is not None
        self._builder = HnswBuilder(
            catalogue,
            url=location.catalogue.url,
            partitions=self._partitions,
            half=kind == "halfvec",
        )
        self._adopted = AdoptedColumns(catalogue)
        self._searcher = PgvectorSearcher(catalogue, self._builder, self._adopted, self.space)
        self._spaces: dict[int, Space] = {}  # a number means one space for ever

    @classmethod
    def open(cls, location: Location, catalogue: Catalogue) -> Self:
        _check_extension(catalogue, shown=location.shown)
        stored = catalogue.settings()
        if SETTING in stored:  # an application works with these tables too
            catalogue.database.patience = PATIENCE_SECONDS
        return cls(
            location,
            catalogue,
            created_with={name: stored[name] for name in SHAPING if name in stored},
        )

    @classmethod
    def create(cls, location: Location, catalogue: Catalogue) -> Self:
        with catalogue.writing() as connection:
            connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector")
        _check_extension(catalogue, shown=location.shown)
        return cls(location, catalogue, created_with=dict(location.settings))

    def close(self) -> None:
        """The connections are the catalogue's."""

    # ---- spaces

    def create_space(
        self, number: int, space: Space, *, connection: Connection | None = None
    ) -> None:
        table, parts = self._quoted(number), self._partitions
        split = ' PARTITION BY HASH ("row")' if parts else ""
        with self._writing(connection) as writing:
            run = writing.exec_driver_sql
            run(
                f'CREATE TABLE IF NOT EXISTS {table} ("row" bigint PRIMARY KEY, '
                f"vector vector({int(space.dim)}) NOT NULL){split}"
            )
            for part in range(parts):
                run(
                    f"CREATE TABLE IF NOT EXISTS {self._quoted(number, part)} PARTITION OF {table} "
                    f"FOR VALUES WITH (MODULUS {parts}, REMAINDER {part})"
                )
            if 4 * space.dim <= PLAIN_BYTES:  # in the row itself: read without a detour
                run(f"ALTER TABLE {table} ALTER COLUMN vector SET STORAGE PLAIN")

    def drop_space(self, number: int, *, connection: Connection | None = None) -> None:
        """Never waits long for its lock, because every reader that comes later waits behind it."""
        from psycopg.errors import LockNotAvailable
        from sqlalchemy.exc import OperationalError

        deadline = time.monotonic() + DROP_SECONDS
        with self._writing(connection) as writing:
            if number in self._adopted.numbers():
                from midspan.gallery.adoption.postgres_handover import release_column

                release_column(writing, self._catalogue, self.binding(), number)
                return
            run = writing.exec_driver_sql
            before = run("SHOW lock_timeout").scalar_one()
            while True:
                self._builder.cancel(writing, number)
                try:
                    with writing.begin_nested():
                        run(f"SET LOCAL lock_timeout = '{DROP_WAIT}'")
                        run(f"DROP TABLE IF EXISTS {self._quoted(number)}")
                        run(f"SET LOCAL lock_timeout = '{before}'")
                    return
                except OperationalError as error:
                    if not isinstance(error.orig, LockNotAvailable):
                        raise
                    if time.monotonic() > deadline:
                        raise StoreError(
                            f"{self._catalogue.shown}: the vectors of space {number} were in use "
                            f"for {DROP_SECONDS:.0f} s and are not dropped; end the transactions "
                            "that read them (pg_stat_activity shows them), then repeat the step"
                        ) from error
                time.sleep(random.uniform(0.05, 0.3))

    # ---- vectors

    def put(
        self,
        number: int,
        rows: IntArray,
        vectors: FloatArray,
        *,
        payloads: Sequence[str] | None = None,
        connection: Connection | None = None,
    ) -> None:
        self._adopted.refuse(number)
        with self._writing(connection) as writing:
            for start in range(0, len(rows), COPY_ROWS):
                part = slice(start, start + COPY_ROWS)
                self._copy(writing, number, rows[part], vectors[part])

    def _copy(
        self, connection: Connection, number: int, rows: IntArray, vectors: FloatArray
    ) -> None:
        raw, table = _driver(connection), self._quoted(number)
        raw.execute(f'DELETE FROM {table} WHERE "row" = ANY(%s)', (rows.tolist(),))
        statement = f'COPY {table} ("row", vector) FROM STDIN WITH (FORMAT BINARY)'
        with raw.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(COPY_HEAD + _tuples(rows, vectors) + COPY_END)

    def delete(self, rows: IntArray, *, connection: Connection | None = None) -> None:
        with self._writing(connection) as writing:
            for number in self._catalogue.read(writing).spaces.keys() - self._adopted.numbers():
                _driver(writing).execute(
                    f'DELETE FROM {self._quoted(number)} WHERE "row" = ANY(%s)', (rows.tolist(),)
                )

    def supersede(self, number: int, rows: IntArray, *, by: int) -> None:
        """Seen at each search."""

    def set_payload(self, payloads: Mapping[int, str]) -> None:
        """Filters read the catalogue's own."""

    def fetch(self, number: int, rows: IntArray) -> tuple[IntArray, FloatArray]:
        space = self.space(number)
        records = self._catalogue.ask(
            f'SELECT "row", vector_send(vector) FROM {self._quoted(number)} WHERE "row" = ANY(%s)',
            (rows.tolist(),),
        )
        place = {row: index for index, (row, _) in enumerate(records)}
        there = [row for row in rows.tolist() if row in place]
        matrix = from_binary([records[place[row]][1] for row in there], space.dim)
        return np.array(there, dtype=np.int64), matrix

    def rows(self, number: int, *, after: int, limit: int) -> IntArray:
        records = self._catalogue.ask(
            f'SELECT "row" FROM {self._quoted(number)} WHERE "row" > %s ORDER BY "row" LIMIT %s',
            (after, limit),
        )
        return np.array([row for (row,) in records], dtype=np.int64)

    def count(self, number: int) -> int:
        return int(self._catalogue.ask(f"SELECT count(*) FROM {self._quoted(number)}")[0][0])

    def search(self, request: SearchRequest) -> list[Candidates]:
        return self._searcher.search(request)

    # ---- index

    def needs_index(self, number: int) -> bool:
        if number in self._adopted.numbers():  # their indexes are the application's
            return False
        return self._builder.needed(number, self.space(number))

    def build_index(self, number: int) -> None:
        if self.needs_index(number):
            self._builder.build(number, self.space(number))

    def index_status(self, number: int) -> IndexStatus:
        if number in self._adopted.numbers():
            return self._adopted.status(number, self.space(number), rows=self.count(number))
        return self._builder.status(number, self.space(number))

    def vacuum(self) -> None:
        numbers = self._catalogue.snapshot().spaces.keys() - self._adopted.numbers()
        self._builder.vacuum(sorted(numbers))

    # ---- the application's own table, of an adopted gallery

    @property
    def owner(self) -> str | None:
        binding = self._adopted.binding()
        return None if binding is None else binding.shown

    @property
    def written_space(self) -> int | None:
        binding = self._adopted.binding()
        return None if binding is None else binding.number

    def binding(self) -> TableBinding:
        binding = self._adopted.binding()
        assert binding is not None
        return binding

    def build_on(self, unfinished: str | None, statement: str) -> None:
        """An index on the application's table, online; an unfinished one of the name goes first."""
        self._builder.run_alone(unfinished, statement)

    def catch_up(self) -> int:
        from midspan.gallery.adoption.postgres_adopt import catch_up

        return 0 if self._adopted.binding() is None else catch_up(self._catalogue).total

    # ---- below

    def space(self, number: int) -> Space:
        if number not in self._spaces:
            spaces = self._catalogue.snapshot().spaces
            if number not in spaces:
                raise StateChanged(
                    f"{self._catalogue.shown}: there is no space {number}; look at the state again"
                )
            self._spaces[number] = spaces[number]
        return self._spaces[number]

    def _quoted(self, number: int, part: int | None = None) -> str:
        return f'"{vector_table(self._catalogue, number, part)}"'

    def _writing(self, connection: Connection | None) -> AbstractContextManager[Connection]:
        return self._catalogue.writing() if connection is None else nullcontext(connection)


SHAPING = ("partitions", "index")


def _check_extension(catalogue: Catalogue, *, shown: str) -> None:
    versions = catalogue.ask("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    version = versions[0][0] if versions else "none"
    if not versions or tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise StoreError(
            f"{shown}: expected pgvector {'.'.join(map(str, OLDEST))} or newer in this database, "
            f"got {version}; install it and run ALTER EXTENSION vector UPDATE"
        )


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _tuples(rows: IntArray, vectors: FloatArray) -> bytes:
    """Rows as PostgreSQL's COPY takes them in binary: two fields, each after its length."""
    dim = vectors.shape[1]
    row = [("fields", ">i2"), ("row_bytes", ">i4"), ("row", ">i8"), ("vector_bytes", ">i4")]
    vector = [("dim", ">i2"), ("unused", ">i2"), ("vector", ">f4", (dim,))]
    tuples = np.zeros(len(rows), dtype=[*row, *vector])
    tuples["fields"], tuples["row_bytes"], tuples["row"] = 2, 8, rows
    tuples["vector_bytes"], tuples["dim"], tuples["vector"] = 4 + 4 * dim, dim, vectors
    return tuples.tobytes()
