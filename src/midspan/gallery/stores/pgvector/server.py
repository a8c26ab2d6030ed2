"""Connections to PostgreSQL, the names of a gallery's tables, and errors in plain words."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from midspan.errors import MissingDependency, StateChanged, StoreError
from midspan.gallery.stores.pgvector.place import split_location
from midspan.gallery.stores.settings import check_made, with_settings

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

EF_SEARCH = 200  # candidates that HNSW keeps; 64 found 0.906 of the neighbours of hard data
IDLE = 1.0  # seconds after which a connection is asked whether it is still there
CONNECT_SECONDS = 10


class Server:
    """A pool of connections to one database, and the tables of one gallery in it."""

    def __init__(self, location: str) -> None:
        try:
            import psycopg
            from pgvector.psycopg import register_vector
        except ImportError as error:
            raise MissingDependency(
                "psycopg and pgvector", extra="postgres", wanted_for="a gallery in PostgreSQL"
            ) from error
        self._psycopg, self._register = psycopg, register_vector
        self._location, self.place = location, split_location(location)
        self.table, self.shown = self.place.table, self.place.shown
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._idle: list[tuple[float, Connection]] = []
        self._open = True

    def adopt(self, settings: Mapping[str, str]) -> None:
        """Go on with what the gallery was made with."""
        check_made(self.place.settings, settings, shown=self.shown)
        self.place = split_location(with_settings(self._location, settings))

    def sql(self, text: str, **names: str | int) -> bytes:
        """`{items}` becomes the gallery's own table; further names are numbers or fragments."""
        tables = {
            name: f'"{self.table}_{name}"'
            for name in ("gallery", "spaces", "items", "work", "trail", "sequence")
        }
        return text.format(**tables, **names).encode()

    def vectors(self, number: int) -> str:
        return f'"{self.table}_vectors_{int(number)}"'

    def part(self, number: int, part: int) -> str:
        """One partition of these vectors."""
        return f'"{self.table}_vectors_{int(number)}_{int(part)}"'

    @contextmanager
    def asking(self) -> Iterator[Connection]:
        """For statements that need no common snapshot."""
        with self.errors():
            connection = self._borrow()
            try:
                yield connection
            except self._psycopg.OperationalError:
                connection.close()
                self._forget_idle()  # the server may be gone: theirs is no better
                raise
            finally:
                self._give_back(connection)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One snapshot: what several statements see belongs together."""
        with self.asking() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield connection

    @contextmanager
    def writing(self, *, alone: bool = False) -> Iterator[Connection]:
        """One transaction. Those that change the state are `alone`, the others share."""
        with self.asking() as connection, connection.transaction():
            lock = "pg_advisory_xact_lock" if alone else "pg_advisory_xact_lock_shared"
            connection.execute(
                f"SELECT {lock}(hashtextextended(%s, 0))".encode(), (f"midspan {self.table}",)
            )
            yield connection
            connection.execute(self.sql("SELECT nextval('{sequence}')"))

    def connect(self, *, vectors: bool = True) -> Connection:
        connection = self._psycopg.connect(
            self.place.url, autocommit=True, connect_timeout=CONNECT_SECONDS
        )
        if vectors:
            self._register(connection)
            connection.execute(f"SET hnsw.ef_search = {EF_SEARCH}".encode())
            connection.execute("SET hnsw.iterative_scan = 'strict_order'")
            # A plan for any k and any filter would read the whole table.
            connection.execute("SET plan_cache_mode = 'force_custom_plan'")
        return connection

    def close(self) -> None:
        self._open = False
        self._forget_idle()

    def _forget_idle(self) -> None:
        with self._guard:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.errors.UndefinedTable as error:
            raise StateChanged(
                f"{self.shown}: the gallery, or one of its spaces, is gone; look at it again"
            ) from error
        except self._psycopg.errors.DiskFull as error:
            raise StoreError(
                f"{self.shown}: the server's disk is full; nothing of this step was written"
            ) from error
        except self._psycopg.OperationalError as error:
            raise StoreError(
                f"{self.shown}: the server cannot be reached or broke off "
                f"({_first_line(error)}); what was not acknowledged may be repeated"
            ) from error
        except self._psycopg.Error as error:
            raise StoreError(f"{self.shown}: {_first_line(error)}") from error

    def _borrow(self) -> Connection:
        if not self._open:
            raise StoreError(f"{self.shown}: this gallery is closed")
        if os.getpid() != self._process:
            raise StoreError(f"{self.shown}: opened by another process; open it again after a fork")
        while True:
            with self._guard:
                if not self._idle:
                    break
                since, connection = self._idle.pop()
            if time.monotonic() - since < IDLE or self._answers(connection):
                return connection
        return self.connect()

    def _answers(self, connection: Connection) -> bool:
        try:
            connection.execute("SELECT 1")
        except self._psycopg.Error:
            connection.close()
            return False
        return True

    def _give_back(self, connection: Connection) -> None:
        with self._guard:
            if self._open and not connection.closed:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
