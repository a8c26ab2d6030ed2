"""The catalogue: one object for its tables, its state and its transactions."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from sqlalchemy import Connection, delete, func, insert, select, text, update

from midspan.errors import FormatError, GalleryError
from midspan.gallery import rules
from midspan.gallery.catalogue import items, outbox, work
from midspan.gallery.catalogue.audit import AuditLog, Blobs, IndexFailures
from midspan.gallery.catalogue.database import (
    Database,
    check_layout,
    create_tables,
    exists,
    open_database,
)
from midspan.gallery.catalogue.sqlite import Sqlite, new_file, page_size
from midspan.gallery.catalogue.tables import Dialect, Tables, tables_of
from midspan.gallery.catalogue.where import Condition, where
from midspan.gallery.catalogue.work import WorkList
from midspan.gallery.filters import Filter
from midspan.gallery.location import CatalogueLocation
from midspan.gallery.records import AuditEvent, State
from midspan.spaces import Space

ATTEMPTS = 8  # when two writers meet, at one new id say, one of them begins again
FIRST_SPACE = 1  # the number of a new gallery's space

Result = TypeVar("Result")


class StateSnapshot(NamedTuple):
    """The state with the numbers of its spaces."""

    state: State
    numbers: dict[str, int]  # by fingerprint
    spaces: dict[int, Space]  # by number


class ItemText(NamedTuple):
    """What a hit shows of an item; `payload` is JSON."""

    id: str
    uri: str | None
    payload: str


class Catalogue:
    def __init__(self, database: Database, tables: Tables) -> None:
        self.database, self.tables = database, tables
        self.work, self.blobs = WorkList(self), Blobs(self)
        self.audit, self.index_failures = AuditLog(self), IndexFailures(self)
        self._seen: tuple[int, StateSnapshot] | None = None  # SQLite's commits, or the version
        name = f'"{tables.items.name}"'
        columns = "id, uri, payload" if tables.dialect == "sqlite" else "id, uri, payload::text"
        among = "IN (SELECT value FROM json_each(?))" if tables.dialect == "sqlite" else "= ANY(%s)"
        self._texts = f'SELECT "row", {columns} FROM {name} WHERE "row" {among}'
        self._version = f'SELECT version FROM "{tables.gallery.name}"'

    # ---- made and opened

    @classmethod
    @contextmanager
    def creating(cls, place: CatalogueLocation, space: Space, *, shown: str) -> Iterator[Self]:
        """A catalogue without tables, to be filled by `first_write`; it is there when that is.

        A file is written next to its place and gets its name when the block ends.
        """
        if place.path is not None:
            with new_file(place.path, page_size=page_size(space.dim)) as part:
                catalogue = cls._on(CatalogueLocation(path=part), shown=shown)
                try:
                    yield catalogue
                finally:
                    catalogue.close()
            return
        catalogue = cls._on(place, shown=shown)
        try:
            if place.in_postgresql and exists(catalogue.database, catalogue.tables):
                raise GalleryError(f"there is a gallery at {shown} already; open it")
            yield catalogue
        except BaseException:
            catalogue.close()
            raise
        if place.in_postgresql:
            catalogue.close()

    @classmethod
    def open(cls, place: CatalogueLocation, *, shown: str) -> Self:
        """An older layout is migrated first."""
        catalogue = cls._on(place, shown=shown)
        try:
            check_layout(catalogue.database, catalogue.tables)
        except BaseException:
            catalogue.close()
            raise
        return catalogue

    @classmethod
    def _on(cls, place: CatalogueLocation, *, shown: str) -> Self:
        database = open_database(place, shown=shown)
        prefix = f"{place.table}_" if place.in_postgresql else ""
        return cls(database, tables_of(database.dialect, prefix))

    def first_write(
        self,
        space: Space,
        *,
        event: AuditEvent,
        settings: Mapping[str, str],
        then: Callable[[Connection], None] | None = None,
    ) -> None:
        """Tables, state and the first space, in one transaction; `then` is part of it."""
        tables = self.tables
        with self.database.writing(exclusive=True) as connection:
            create_tables(connection, tables)
            connection.execute(
                insert(tables.gallery).values(
                    one=1,
                    version=1,
                    live=json.dumps([space.fingerprint]),
                    settings=json.dumps(dict(settings)),
                    next_space=FIRST_SPACE + 1,
                    sequence=0,
                )
            )
            self._insert_space(connection, FIRST_SPACE, space)
            self.audit.write(connection, event)
            self.advance(connection)
            if then is not None:
                then(connection)

    def close(self) -> None:
        self.database.close()

    # ---- transactions

    @property
    def dialect(self) -> Dialect:
        return self.tables.dialect

    @property
    def shown(self) -> str:
        return self.database.shown

    @property
    def path(self) -> Path | None:
        return self.database.path if isinstance(self.database, Sqlite) else None

    def name(self, table: str) -> str:
        """The name of a table of this gallery."""
        return f"{self.tables.prefix}{table}"

    def reading(self) -> AbstractContextManager[Connection]:
        return self.database.reading()

    def writing(self) -> AbstractContextManager[Connection]:
        return self.database.writing()

    def errors(self) -> AbstractContextManager[None]:
        return self.database.errors()

    def write(
        self,
        action: Callable[[Connection], Result],
        *,
        durable: bool = True,
        exclusive: bool = False,
    ) -> Result:
        """One transaction; again if another writer was in the way, which undid it."""
        patience, attempt = self.database.patience, 0
        deadline = time.monotonic() + patience
        while True:
            try:
                with self.database.writing(durable=durable, exclusive=exclusive) as connection:
                    return action(connection)
            except GalleryError as error:
                attempt += 1
                over = attempt >= ATTEMPTS and time.monotonic() >= deadline
                if over or not self.database.contended(error):
                    raise
            time.sleep(random.uniform(0.01, 0.2) if patience else 0.0)

    def ask(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.database.ask(statement, values)

    # ---- state

    def snapshot(self) -> StateSnapshot:
        """As it is now; read again only if something changed."""
        seen = self._seen
        if isinstance(self.database, Sqlite) and self.database.path is not None:
            mark = self.database.commits()
        else:
            mark = int(self.ask(self._version)[0][0])
        if seen is None or seen[0] != mark:
            with self.reading() as connection:
                seen = (mark, self.read(connection))
            self._seen = seen
        return seen[1]

    def last_seen(self) -> StateSnapshot | None:
        """As it was when last asked for; asks nobody."""
        return None if self._seen is None else self._seen[1]

    def read(self, connection: Connection) -> StateSnapshot:
        """As this transaction sees it; parsed again only if that is not the version last seen.

        Only what was committed is remembered: two transactions may both be making a version.
        """
        gallery, spaces = self.tables.gallery.c, self.tables.spaces.c
        ((version,),) = items.ask(connection, self.tables, self._version)
        if self._seen is not None and self._seen[1].state.version == version:
            return self._seen[1]
        live, target, upgrade = connection.execute(
            select(gallery.live, gallery.target, gallery.upgrade)
        ).one()
        by_number = {
            number: Space.from_json(text)
            for number, text in connection.execute(
                select(spaces.number, spaces.json).order_by(spaces.number)
            )
        }
        state = State(
            version=version,
            spaces={space.fingerprint: space for space in by_number.values()},
            live=tuple(json.loads(live)),
            target=target,
            upgrade=None if upgrade is None else json.loads(upgrade),
        )
        by_name = {space.fingerprint: number for number, space in by_number.items()}
        return StateSnapshot(state, by_name, by_number)

    def change(
        self,
        connection: Connection,
        state: State,
        *,
        event: AuditEvent,
        reserved: Mapping[str, int] | None = None,
        listed: int = -1,
    ) -> tuple[StateSnapshot, dict[int, Space], list[int]]:
        """(the new state, spaces that are new, numbers of spaces that were forgotten).

        reserved: numbers of new spaces that an engine elsewhere has made already. listed: the last
        row that is on the work list of the new target already.
        """
        before = self.read(connection)
        after = rules.check_change(before.state, state)
        forgotten = [before.numbers[name] for name in before.numbers.keys() - after.spaces.keys()]
        for number in forgotten:
            if left := self.stored(connection, number):
                raise GalleryError(
                    f"{left} vectors of {before.spaces[number]} are left; drop them before the "
                    "gallery forgets the space"
                )
            self.forget_space(connection, number)
        created: dict[int, Space] = {}
        for name, space in after.spaces.items():
            if name in before.numbers:
                spaces = self.tables.spaces
                connection.execute(
                    update(spaces)
                    .where(spaces.c.number == before.numbers[name])
                    .values(json=space.to_json())
                )
                continue
            number = (reserved or {}).get(name) or self.next_space(connection)
            self._insert_space(connection, number, space)
            created[number] = space
        if reserved:
            done = outbox.remove(connection, self.tables, "space", list(reserved.values()))
            if done < len(reserved):
                raise GalleryError(f"{self.shown}: making a space took too long; repeat the step")
        self._write_state(connection, after)
        now = self.read(connection)
        if after.target != before.state.target:
            target = None if after.target is None else now.numbers[after.target]
            work.list_all(connection, self.tables, target, after=listed)
        self.audit.write(connection, event)
        self.advance(connection)
        return now, created, forgotten

    def _write_state(self, connection: Connection, state: State) -> None:
        upgrade = None if state.upgrade is None else json.dumps(state.upgrade, ensure_ascii=False)
        connection.execute(
            update(self.tables.gallery).values(
                version=state.version,
                live=json.dumps(state.live),
                target=state.target,
                upgrade=upgrade,
            )
        )

    def new_version(self, connection: Connection) -> None:
        """Readers look at the state again."""
        gallery = self.tables.gallery
        connection.execute(update(gallery).values(version=gallery.c.version + 1))

    def _insert_space(self, connection: Connection, number: int, space: Space) -> None:
        connection.execute(
            insert(self.tables.spaces).values(
                number=number, fingerprint=space.fingerprint, json=space.to_json()
            )
        )

    def forget_space(self, connection: Connection, number: int) -> None:
        spaces = self.tables.spaces
        connection.execute(delete(spaces).where(spaces.c.number == number))

    def stored(self, connection: Connection, number: int) -> int:
        """How many vectors a space has."""
        table = self.tables.stored
        statement = select(func.count()).select_from(table).where(table.c.space == number)
        return int(connection.execute(statement).scalar_one())

    def settings(self) -> dict[str, str]:
        """What the gallery was made with, and what its owner chose since."""
        with self.reading() as connection:
            text = connection.execute(select(self.tables.gallery.c.settings)).scalar_one()
        settings: dict[str, str] = json.loads(text)
        return settings

    def set_setting(self, name: str, value: str, *, event: AuditEvent | None) -> None:
        """Without an event: a note of our own, which changes nothing for anybody."""

        def write(connection: Connection) -> None:
            gallery = self.tables.gallery
            before = connection.execute(select(gallery.c.settings)).scalar_one()
            after = {**json.loads(before), name: value}
            connection.execute(update(gallery).values(settings=json.dumps(after)))
            if event is not None:
                self.audit.write(connection, event)
                self.advance(connection)

        self.write(write, exclusive=True)

    # ---- numbers that are given once

    def take_rows(self, connection: Connection, count: int) -> list[int]:
        """New rows. PostgreSQL: from a sequence, for which no writer waits for another."""
        if self.dialect == "postgresql":
            name = self.tables.row_numbers.name
            numbers = connection.execute(
                text(f"SELECT nextval('\"{name}\"') FROM generate_series(1, :count)"),
                {"count": count},
            )
            return sorted(int(row) for (row,) in numbers)
        after = self._grown(connection, "next_row", count)
        return list(range(after - count, after))

    def next_space(self, connection: Connection) -> int:
        return self._grown(connection, "next_space", 1) - 1

    def advance(self, connection: Connection) -> int:
        """The number of this write."""
        if self.dialect == "sqlite":
            return self._grown(connection, "sequence", 1)
        name = self.tables.sequence.name
        return int(connection.exec_driver_sql(f"SELECT nextval('\"{name}\"')").scalar_one())

    def _grown(self, connection: Connection, column: str, by: int) -> int:
        statement = f'UPDATE "{self.tables.gallery.name}" SET {column} = {column} + {int(by)} '
        return int(connection.exec_driver_sql(f"{statement} RETURNING {column}").scalar_one())

    def sequence(self, *, settled: bool = False) -> int:
        """See Gallery.sequence. PostgreSQL's sequences do not wait for commits: `settled` waits
        for the writers instead."""
        if self.dialect == "sqlite":
            return int(self.ask(f'SELECT sequence FROM "{self.tables.gallery.name}"')[0][0])
        last = f'SELECT last_value FROM "{self.tables.sequence.name}"'
        if not settled:
            return int(self.ask(last)[0][0])
        with self.database.writing(exclusive=True) as connection:
            return int(connection.execute(text(last)).scalar_one())

    # ---- items, for engines and for hits

    def where(self, filter: Filter | None) -> Condition:
        return where(filter, self.tables)

    def texts(self, rows: Collection[int]) -> dict[int, ItemText]:
        """What hits show, of the rows that are items; by the shortest way."""
        values: Any = list(rows)
        if self.tables.dialect == "sqlite":
            values = json.dumps(values)
        return {row: ItemText(*rest) for row, *rest in self.ask(self._texts, (values,))}


def check_engine(settings: Mapping[str, str], scheme: str, *, shown: str) -> None:
    engine = settings.get("engine", scheme)
    if engine.partition("+")[0] != scheme.partition("+")[0]:
        raise FormatError(
            f"{shown}: this catalogue belongs to a gallery whose vectors are in {engine}, not in "
            f"{scheme}; give the location it was made with"
        )
