"""What the catalogue needs of a database (SQLite and PostgreSQL differ here and nowhere else), and
which layout it has: created, found, or migrated in one transaction when it is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, text

from midspan.errors import FormatError, GalleryError
from midspan.gallery.catalogue.sqlite import APPLICATION, Sqlite
from midspan.gallery.catalogue.tables import Dialect, Tables
from midspan.gallery.location import CatalogueLocation

MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "0001"  # the last revision in migrations/versions
FORMAT = 2  # of a SQLite file: PRAGMA user_version

log = logging.getLogger("midspan.gallery")


class Database(Protocol):
    dialect: Dialect
    shown: str
    patience: float  # seconds that a write tries again where others are in the way

    def reading(self) -> AbstractContextManager[Connection]:
        """One snapshot: what several statements see belongs together."""
        ...

    def writing(
        self, *, durable: bool = True, exclusive: bool = False
    ) -> AbstractContextManager[Connection]:
        """One transaction: on disk when the block ends, undone if it raises.

        durable=False: others see it at once, but a power cut may undo it; for leases.
        exclusive: no other writer is in the middle of a transaction. For changes of the state.
        """
        ...

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of one statement in the driver's own style, by the shortest way."""
        ...

    def errors(self) -> AbstractContextManager[None]:
        """The driver's errors in words that say what to do."""
        ...

    def contended(self, error: BaseException) -> bool:
        """Two transactions were in each other's way and this one was undone: repeat it."""
        ...

    def check(self) -> list[str]:
        """What is wrong with the stored data itself; empty if nothing is."""
        ...

    def close(self) -> None: ...


def open_database(place: CatalogueLocation, *, shown: str) -> Database:
    if place.url is not None:
        from midspan.gallery.catalogue.postgresql import Postgresql

        return Postgresql(place.url, table=place.table, shown=shown)
    return Sqlite(place.path, shown=shown)


def version_table(tables: Tables) -> str:
    return f"{tables.prefix}alembic_version"


def create_tables(connection: Connection, tables: Tables) -> None:
    tables.metadata.create_all(connection, checkfirst=False)
    table = version_table(tables)
    connection.execute(
        text(f'CREATE TABLE "{table}" (version_num VARCHAR(32) NOT NULL PRIMARY KEY)')
    )
    connection.execute(text(f'INSERT INTO "{table}" VALUES (:head)'), {"head": HEAD})
    if tables.dialect == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION}")
        connection.exec_driver_sql(f"PRAGMA user_version = {FORMAT}")


def exists(database: Database, tables: Tables) -> bool:
    """Whether there is a gallery, of whichever layout; PostgreSQL."""
    with database.reading() as connection:
        return _there(connection, tables, tables.gallery.name)


def check_layout(database: Database, tables: Tables) -> None:
    """Refuse what is no catalogue; migrate what is an older one."""
    if isinstance(database, Sqlite):
        application, format = database.header()
        if application != APPLICATION:
            raise FormatError(f"{database.shown} is a SQLite file but not a gallery")
        if format > FORMAT:
            raise FormatError(
                f"{database.shown} is a gallery of format {format}, this midspan reads up to "
                f"{FORMAT}: install the version that wrote it"
            )
    elif not exists(database, tables):
        raise GalleryError(
            f"there is no gallery at {database.shown}; make one with midspan gallery create …"
        )
    with database.reading() as connection:
        revision = _revision(connection, tables)
    if revision != HEAD:
        migrate(database, tables)


def migrate(database: Database, tables: Tables) -> None:
    """A second caller finds it done. If it fails, nothing is changed."""
    with database.writing(exclusive=True) as connection:
        revision = _revision(connection, tables)
        if revision == HEAD:
            return
        log.info("%s: migrating the catalogue from %s", database.shown, revision or "before 0001")
        _upgrade(connection, tables, shown=database.shown)
        if isinstance(database, Sqlite):
            connection.exec_driver_sql(f"PRAGMA user_version = {FORMAT}")


def _upgrade(connection: Connection, tables: Tables, *, shown: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes.update(
        connection=connection,
        tables=tables,
        version_table=version_table(tables),
        shown=shown,
    )
    try:
        command.upgrade(config, HEAD)
    except CommandError as error:
        raise FormatError(
            f"{shown}: this gallery was written by a newer midspan ({error}); install that one"
        ) from error


def _revision(connection: Connection, tables: Tables) -> str | None:
    table = version_table(tables)
    if not _there(connection, tables, table):
        return None
    revision = connection.execute(text(f'SELECT version_num FROM "{table}"')).scalar()
    return None if revision is None else str(revision)


def _there(connection: Connection, tables: Tables, name: str) -> bool:
    if tables.dialect == "sqlite":
        statement, value = "SELECT 1 FROM sqlite_master WHERE name = :name", name
    else:
        statement, value = "SELECT 1 WHERE to_regclass(:name) IS NOT NULL", f'"{name}"'
    return connection.execute(text(statement), {"name": value}).first() is not None
