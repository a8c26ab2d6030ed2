"""The SQLite file: opened safely, by several threads and processes at once, with clear errors."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from midspan.errors import FormatError, GalleryError, StoreError

APPLICATION = 0x6D736767  # "msgg": what `file` and a careful reader find in the header
FORMAT = 1
BUSY_SECONDS = 60.0  # how long a writer waits for the others
# Of pages that a writer keeps: what writes.TOGETHER items touch, wherever they stand in the file,
# fits. SQLite's own 2 MB do not hold that, and each page was read several times.
CACHE_BYTES = 8 * 2**20
# Of the log, before it is copied into the file. SQLite's own 1,000 pages are fewer than one batch
# of a backfill changes in a large file: each was copied at once, the same pages again and again.
LOG_BYTES = 64 * 2**20
LOG_KEPT_BYTES = 128 * 2**20  # a log that grew longer shrinks to this
_MAGIC = b"SQLite format 3\0"


class Database:
    """Connections to one gallery file: any number that read, one at a time that writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process = os.getpid()
        self._idle: list[sqlite3.Connection] = []
        self._every: list[sqlite3.Connection] = []
        self._guard = threading.Lock()
        self._write_lock = threading.Lock()
        self._watch_lock = threading.Lock()
        self._watch: sqlite3.Connection | None = None  # never writes, or it would not count itself
        self._open = True
        with self.errors():
            self._writer = self._connect()
            _ready_to_write(self._writer)
        self._check_format()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One snapshot: what several statements see belongs together."""
        connection = self._borrow()
        try:
            with self.errors():
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    connection.execute("ROLLBACK")
        finally:
            self._give_back(connection)

    def ask(self, statement: str, values: Sequence[str | int | float]) -> list[tuple[Any, ...]]:
        """The rows of one statement, which is a snapshot by itself."""
        connection = self._borrow()
        try:
            return connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
        finally:
            self._give_back(connection)

    def commits(self) -> int:
        """SQLite's counter: the same as before if no connection of any process wrote since."""
        with self._watch_lock:
            self.check_open()
            if self._watch is None:
                with self.errors():
                    self._watch = self._connect()
            try:
                return int(self._watch.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error as error:  # without `errors`, which costs as much as the question
                raise explain(error, self.path) from error

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """One transaction: on disk when the block ends, undone if it raises.

        durable=False: other processes see it at once, but a power cut may undo it (a crash of the
        process does not). For leases, which nobody was promised, and a wait for the disk less.
        """
        with self._write_lock:
            self.check_open()
            with self.errors():
                if not durable:
                    self._writer.execute("PRAGMA synchronous = NORMAL")
                try:
                    self._writer.execute("BEGIN IMMEDIATE")
                    try:
                        yield self._writer
                        self._writer.execute("COMMIT")
                    except BaseException:
                        if self._writer.in_transaction:  # a full disk may have ended it already
                            self._writer.execute("ROLLBACK")
                        raise
                finally:
                    if not durable:
                        self._writer.execute("PRAGMA synchronous = FULL")

    def connect(self) -> sqlite3.Connection:
        """A connection of the caller's own; closed with the rest."""
        self.check_open()
        with self.errors():
            return self._connect()

    def close(self) -> None:
        with self._write_lock, self._watch_lock, self._guard:
            if self._open and os.getpid() == self._process:
                for connection in self._every:
                    connection.close()
            self._open = False

    def check_open(self) -> None:
        if not self._open:
            raise StoreError(f"{self.path}: this gallery is closed")
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.path} was opened by another process; open it again after a fork"
            )

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise explain(error, self.path) from error

    def _borrow(self) -> sqlite3.Connection:
        self.check_open()
        with self._guard:
            if self._idle:
                return self._idle.pop()
        with self.errors():
            return self._connect()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._guard:
            self._idle.append(connection)

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self.path)
        with self._guard:
            self._every.append(connection)
        return connection

    def _check_format(self) -> None:
        with self.errors():
            application = self._writer.execute("PRAGMA application_id").fetchone()[0]
            version = self._writer.execute("PRAGMA user_version").fetchone()[0]
        if application == APPLICATION and version == FORMAT:
            return
        self.close()
        if application != APPLICATION:
            raise FormatError(f"{self.path} is a SQLite file but not a gallery")
        raise FormatError(
            f"{self.path} is a gallery of format {version}, this midspan reads format {FORMAT}: "
            "install the version that wrote it, or copy it with that one"
        )


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,  # transactions begin where we say
        check_same_thread=False,  # each connection is used by one thread at a time
        cached_statements=256,
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")  # acknowledged means on the disk
        connection.execute("PRAGMA secure_delete = FAST")  # not a zero for every page given back
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_KEPT_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _ready_to_write(connection: sqlite3.Connection) -> None:
    page = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.execute(f"PRAGMA cache_size = {-CACHE_BYTES // 1024}")  # below zero: in KiB
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // page}")


def check_file(path: Path) -> None:
    """A message better than SQLite's for what is no gallery at all."""
    if path.is_dir():
        raise FormatError(f"{path} is a folder; a gallery is a file: {path}/shop.midspan")
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except FileNotFoundError as error:
        raise GalleryError(
            f"there is no gallery at {path}; make one with midspan gallery create {path} …"
        ) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror})") from error
    if head != _MAGIC:
        raise FormatError(f"{path} is not a gallery: it does not begin like a SQLite file")


def explain(error: sqlite3.Error, path: Path) -> Exception:
    """SQLite's error in words that say what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreError(f"{path}: the disk is full; nothing of this step was written: make room")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(
            f"{path}: another process has been writing for {BUSY_SECONDS:.0f} s; try again"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreError(
            f"{path}: the file or its folder cannot be written ({error}); a gallery needs that "
            "even for searching"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return FormatError(f"{path} is damaged ({error}); restore it from a copy")
    if code == sqlite3.SQLITE_IOERR:
        return StoreError(f"{path}: reading or writing failed ({error}); is the disk full or gone?")
    return StoreError(f"{path}: {error}")
