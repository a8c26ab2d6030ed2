"""`postgresql://…?table=shop`: a gallery in PostgreSQL with pgvector.

Every write is one transaction. A space has a table of its own: it is filled without an index, which
is a hundred times faster, and `optimise` builds HNSW when it has grown large. Searches with filters
use iterative index scans, so that they find k items however few pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from midspan.errors import GalleryError, StateChanged
from midspan.gallery import rules
from midspan.gallery.filters import Filter
from midspan.gallery.items import Draft, Hit, Item, Payload
from midspan.gallery.records import Counts, Entry, Failed, Failure, Mode, Query, State, Task
from midspan.gallery.stores.pgvector import rows, schema, work, writes
from midspan.gallery.stores.pgvector.search import search
from midspan.gallery.stores.pgvector.server import Server
from midspan.spaces import Embeddings, Space

if TYPE_CHECKING:
    from midspan.gallery.stores.pgvector.server import Connection

ATTEMPTS = 8  # when two meet, at one new id say, one of them begins again

Result = TypeVar("Result")


class PgvectorStore:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.location = server.shown

    @classmethod
    def create(cls, location: str, space: Space, *, entry: Entry) -> Self:
        server = Server(location)
        entry = rules.check_entry(entry, when=0.0)
        schema.create_tables(server, rules.first_state(space), entry=entry)
        return cls(server)

    @classmethod
    def open(cls, location: str) -> Self:
        server = Server(location)
        with server.errors():
            connection = server.connect(vectors=False)
            try:
                settings = schema.settings(connection, server)
            finally:
                connection.close()
        if settings is None:
            raise GalleryError(
                f"there is no gallery at {server.shown}; make one with midspan gallery create …"
            )
        server.adopt(settings)
        return cls(server)

    def close(self) -> None:
        self._server.close()

    # ---- the gallery as a whole

    def state(self) -> State:
        with self._server.asking() as connection:
            return rows.read_state(connection, self._server)[0]

    def change(self, state: State, *, entry: Entry) -> State:
        return self._write(
            lambda connection: writes.change(connection, self._server, state, entry), alone=True
        )

    def record(self, entry: Entry) -> None:
        with self._server.writing() as connection:
            writes.record(connection, self._server, entry)

    def trail(self, *, limit: int) -> list[Entry]:
        with self._server.asking() as connection:
            lines = connection.execute(
                self._server.sql(
                    "SELECT who, what, details::text, moment FROM {trail} "
                    "ORDER BY line DESC LIMIT %s"
                ),
                (rules.check_limit(limit),),
            )
            return [
                Entry(who, what, json.loads(details), when) for who, what, details, when in lines
            ]

    def sequence(self) -> int:
        with self._server.asking() as connection:
            row = connection.execute(
                self._server.sql("SELECT last_value FROM {sequence}")
            ).fetchone()
            assert row is not None
            return int(row[0])

    def count(self) -> Counts:
        return self._read(
            lambda connection, state, numbers: rows.count_all(
                connection, self._server, state, numbers
            )
        )

    def optimise(self) -> None:
        with self._server.asking() as connection:
            state, numbers = rows.read_state(connection, self._server)
            for name in ["{items}", *map(self._server.vectors, numbers.values())]:
                connection.execute(self._server.sql(f"ANALYZE {name}"))
        for fingerprint in state.live:
            schema.build_index(self._server, numbers[fingerprint], state.spaces[fingerprint])

    def check(self) -> list[str]:
        """Indexes that were left half-built; the rest PostgreSQL guards by itself."""
        with self._server.asking() as connection:
            broken = connection.execute(
                "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid AND "
                "starts_with(indexrelid::regclass::text, %s)",
                (f"{self._server.table}_",),
            ).fetchall()
        return [f"the index {name} is not complete: optimise the gallery" for (name,) in broken]

    # ---- items

    def upsert(self, drafts: Sequence[Draft], vectors: Sequence[Embeddings], *, mode: Mode) -> None:
        self._write(
            lambda connection: writes.upsert(connection, self._server, drafts, vectors, mode=mode)
        )

    def fill(self, vectors: Embeddings, *, revisions: Sequence[int]) -> int:
        return self._write(
            lambda connection: writes.fill(connection, self._server, vectors, revisions)
        )

    def annotate(self, payloads: Mapping[str, Payload]) -> None:
        self._write(lambda connection: writes.annotate(connection, self._server, payloads))

    def delete(self, ids: Sequence[str]) -> int:
        return self._write(lambda connection: writes.delete(connection, self._server, ids))

    def drop(self, space: str, *, limit: int) -> int:
        rules.check_limit(limit)
        return self._write(lambda connection: writes.drop(connection, self._server, space, limit))

    def _write(self, action: Callable[[Connection], Result], *, alone: bool = False) -> Result:
        """Again if another writer was in the way; what was begun has then been undone."""
        with self._server.errors():
            return _again(lambda: self._write_once(action, alone=alone), after=_met)

    def _write_once(self, action: Callable[[Connection], Result], *, alone: bool) -> Result:
        with self._server.writing(alone=alone) as connection:
            return action(connection)

    def _read(self, action: Callable[[Connection, State, dict[str, int]], Result]) -> Result:
        """Again if a space was dropped once its table was named: a snapshot keeps rows alone."""
        return _again(
            lambda: self._read_once(action),
            after=lambda error: isinstance(error, StateChanged) or _met(error),
        )

    def _read_once(self, action: Callable[[Connection, State, dict[str, int]], Result]) -> Result:
        with self._server.reading() as connection:
            state, numbers = rows.read_state(connection, self._server)
            return action(connection, state, numbers)

    def get(self, ids: Sequence[str]) -> list[Item]:
        found = self._read(
            lambda connection, _, numbers: rows.read_items(
                connection, self._server, numbers, "i.id = ANY(%s)", (rules.possible(ids),)
            )
        )
        by_id = {item.id: item for _, item in found}
        return [by_id[id] for id in ids if id in by_id]

    def vectors(self, ids: Sequence[str], *, space: str) -> Embeddings:
        def found(connection: Connection, state: State, numbers: dict[str, int]) -> Embeddings:
            known = rules.known_space(state, space)
            return rows.read_vectors(connection, self._server, numbers[space], ids, known)

        return self._read(found)

    def scan(
        self, *, filter: Filter | None, missing: str | None, after: str, limit: int
    ) -> list[Item]:
        rules.check_limit(limit)

        def page(connection: Connection, state: State, numbers: dict[str, int]) -> list[Item]:
            if missing is not None:
                rules.known_space(state, missing)
            return rows.scan_items(
                connection,
                self._server,
                numbers,
                filter=filter,
                missing=missing,
                after=after,
                limit=limit,
            )

        return self._read(page)

    def search(self, query: Query) -> list[list[Hit]]:
        return _again(lambda: self._search_once(query), after=_met)

    def _search_once(self, query: Query) -> list[list[Hit]]:
        with self._server.asking() as connection:
            state, numbers = rows.read_state(connection, self._server)
            rules.check_query(state, query)
            return search(connection, self._server, query, state, numbers)

    # ---- work

    def prioritise(self, ids: Sequence[str], priorities: Sequence[float]) -> None:
        self._write(lambda connection: work.prioritise(connection, self._server, ids, priorities))

    def claim(self, *, worker: str, limit: int, seconds: float) -> list[Task]:
        rules.check_limit(limit)
        return self._write(
            lambda connection: work.claim(connection, self._server, worker, limit, seconds)
        )

    def release(self, worker: str) -> int:
        return self._write(lambda connection: work.release(connection, self._server, worker))

    def fail(self, reports: Sequence[Failed], *, retry_after: float | None) -> None:
        self._write(lambda connection: work.fail(connection, self._server, reports, retry_after))

    def failures(self, *, after: str, limit: int) -> list[Failure]:
        rules.check_limit(limit)
        with self._server.asking() as connection:
            return work.failures(connection, self._server, after, limit)

    def retry(self) -> int:
        return self._write(lambda connection: work.retry(connection, self._server))


def _again(once: Callable[[], Result], *, after: Callable[[GalleryError], bool]) -> Result:
    for _ in range(ATTEMPTS - 1):
        try:
            return once()
        except GalleryError as error:
            if not after(error):
                raise
    return once()


def _met(error: GalleryError) -> bool:
    """Two were in each other's way, and this one was undone. Readers too: who drops a space locks
    its table and then that of the items, a look at items does it the other way round."""
    from psycopg import errors

    meetings = (errors.UniqueViolation, errors.DeadlockDetected, errors.SerializationFailure)
    return isinstance(error.__cause__, meetings)
