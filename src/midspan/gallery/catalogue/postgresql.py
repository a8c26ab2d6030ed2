"""PostgreSQL: a bounded pool, locks, and errors in plain words.

Nothing is set for a session (`SET LOCAL` at most) and nothing is prepared on the server, so that a
pooler in transaction mode may stand in front of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import Dialect as SqlDialect
from sqlalchemy.exc import DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from midspan.errors import MissingDependency, StateChanged, StoreError
from midspan.gallery.catalogue.tables import Dialect

CONNECTIONS = 8  # kept open
MORE_CONNECTIONS = 24  # opened when those are in use, and closed again
WAIT_SECONDS = 60.0  # for one of them
IDLE_SECONDS = 1.0  # after which a connection is asked whether it is still there
CONNECT_SECONDS = 10
# Less than deadlock_timeout (1 s): where an application and we wait for each other, we give way.
GENTLE_WAIT = "250ms"
READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
LOCK_SECONDS = 20  # that a change of the state waits for readers of a table that it drops


class Postgresql:
    dialect: Dialect = "postgresql"

    def __init__(self, url: str, *, table: str, shown: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingDependency(
                "psycopg", extra="postgres", required_for="a gallery in PostgreSQL"
            ) from error
        self._psycopg, self._url = psycopg, url
        self.table, self.shown = table, shown
        self._process, self._open = os.getpid(), True
        self.patience = 0.0  # seconds that a write tries again where an application is in the way
        self._sql = create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            pool_size=CONNECTIONS,
            max_overflow=MORE_CONNECTIONS,
            pool_timeout=WAIT_SECONDS,
            pool_use_lifo=True,
            use_native_hstore=False,
        )
        event.listen(self._sql, "checkin", _note_idle)
        event.listen(self._sql, "checkout", _check_idle)

    def _connect(self) -> Any:
        return self._psycopg.connect(
            self._url, connect_timeout=CONNECT_SECONDS, prepare_threshold=None
        )

    # ---- transactions

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """For statements that need no common snapshot, or that must not be in a transaction."""
        self._check_open()
        with self.errors(), self._sql.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        self._check_open()
        with self.errors(), self._sql.connect() as connection:
            one = connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
            with one.begin():
                yield one

    @contextmanager
    def writing(self, *, durable: bool = True, exclusive: bool = False) -> Iterator[Connection]:
        self._check_open()
        with self.errors(), self._sql.connect() as connection, connection.begin():
            if self.patience:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{GENTLE_WAIT}'")
            lock = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
            connection.exec_driver_sql(
                f"SELECT {lock}(hashtextextended(%s, 0))", (f"midspan {self.table}",)
            )
            if exclusive:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
            if not durable:
                connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            yield connection

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.autocommit() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            records: list[tuple[Any, ...]] = raw.execute(statement, values or None).fetchall()
            return records

    def ask_together(
        self, settings: str, asked: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> list[list[tuple[Any, ...]]]:
        """What each statement gives, of one transaction that only reads, in one round trip.

        Several statements fit into one message only as plain text, so the values are written into
        it, quoted by the driver.
        """
        with self.autocommit() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            writer = self._psycopg.ClientCursor(raw)
            texts = [writer.mogrify(text, values) for text, values in asked]
            cursor = raw.execute("; ".join([READ, settings, *texts, "COMMIT"]))
            answers = []
            while True:
                if cursor.description is not None:
                    answers.append(cursor.fetchall())
                if not cursor.nextset():
                    return answers

    @property
    def sql_dialect(self) -> SqlDialect:
        return self._sql.dialect

    # ---- the rest

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if error.orig is None:
                raise
            raise self._explain(error.orig) from error.orig
        except self._psycopg.Error as error:
            if self._disconnected(error):
                # A restart ends every connection; SQLAlchemy notices its own errors only.
                self._sql.dispose()
            raise self._explain(error) from error
        except PoolTimeout as error:
            raise StoreError(
                f"{self.shown}: all {CONNECTIONS + MORE_CONNECTIONS} connections were in use for "
                f"{WAIT_SECONDS:.0f} s; try again"
            ) from error

    def _explain(self, error: BaseException) -> StateChanged | StoreError:
        errors, first = self._psycopg.errors, _first_line(error)
        if isinstance(error, errors.UndefinedTable):
            return StateChanged(
                f"{self.shown}: the gallery, or one of its spaces, is gone; look at it again"
            )
        if isinstance(error, errors.DiskFull):
            return StoreError(
                f"{self.shown}: the server's disk is full; nothing of this step was written"
            )
        if isinstance(error, self._psycopg.OperationalError) and not self.contended(error):
            return StoreError(
                f"{self.shown}: the server cannot be reached or broke off ({first}); what was not "
                "acknowledged may be repeated"
            )
        return StoreError(f"{self.shown}: {first}")

    def _disconnected(self, error: BaseException) -> bool:
        """No SQLSTATE (the socket closed), a connection exception (08) or a shutdown (57P)."""
        if not isinstance(error, self._psycopg.OperationalError):
            return False
        return error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))

    def contended(self, error: BaseException) -> bool:
        """Readers too: who drops a space locks its table and then others, in another order."""
        errors = self._psycopg.errors
        kinds = (
            errors.UniqueViolation,
            errors.DeadlockDetected,
            errors.SerializationFailure,
            errors.LockNotAvailable,
        )
        return isinstance(error, kinds) or isinstance(error.__cause__, kinds)

    def check(self) -> list[str]:
        """Indexes that were left half-built; the rest PostgreSQL guards by itself."""
        broken = self.ask(
            "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid AND "
            "starts_with(indexrelid::regclass::text, %s)",
            (f"{self.table}_",),
        )
        return [f"the index {name} is not complete: optimise the gallery" for (name,) in broken]

    def close(self) -> None:
        if self._open:
            self._open = False
            self._sql.dispose(close=os.getpid() == self._process)

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"{self.shown}: this gallery is closed")
        if os.getpid() != self._process:
            raise StoreError(f"{self.shown}: opened by another process; open it again after a fork")


def _note_idle(connection: Any, record: Any) -> None:
    record.info["idle"] = time.monotonic()


def _check_idle(connection: Any, record: Any, proxy: Any) -> None:
    if time.monotonic() - record.info.get("idle", time.monotonic()) < IDLE_SECONDS:
        return
    try:
        connection.execute("SELECT 1")
        connection.rollback()
    except Exception as error:
        raise DisconnectionError from error  # the pool opens another one


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
