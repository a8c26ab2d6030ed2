"""HNSW in PostgreSQL, built online; which part of a space has it, and which few rows need none.

CREATE INDEX CONCURRENTLY lets searches and writes continue. It cannot run in a transaction, so it
has a connection of its own; another one holds an advisory lock in an open transaction meanwhile,
so that one process builds, also through a pooler that gives connections out by transaction.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.types import UserDefinedType

from midspan.errors import GalleryError, StoreError
from midspan.gallery.adoption.binding import SETTING, TableBinding, VectorIndex
from midspan.gallery.adoption.postgres_table import vector_index
from midspan.gallery.engines.base import IndexState, IndexStatus
from midspan.spaces import Metric, Space

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from midspan.gallery.catalogue.catalogue import Catalogue

# One search of 20,000 x 128-d took 11.2 ms without an index and 1.9 with it, so of 5,000 about 3
# without. It is built once a load is over, so a low number costs a load nothing.
INDEX_FROM = 5_000
INDEX_DIMS, HALF_DIMS = 2000, 4000  # more than that HNSW does not take, of four and of two bytes
# Of one row's neighbours while the graph is built, with its vector: 812 MB held 680,000 rows of
# 128 dims. From the first row that does not fit, each takes ten times as long.
GRAPH_BYTES = 800
POLL_SECONDS = 0.2
CONNECT_SECONDS = 10
UNHURRIED = {"statement_timeout": "0", "lock_timeout": "0"}
ALONE = {"max_parallel_maintenance_workers": "0"}  # needs no shared memory; containers have little
RUNNING = "SELECT 1 FROM pg_stat_progress_create_index WHERE relid = to_regclass(quote_ident(%s))"
HELD = (
    "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND database "
    "= (SELECT oid FROM pg_database WHERE datname = current_database()) AND "
    "(classid::bigint << 32) | objid::bigint = %s"
)

OPERATORS: dict[Metric, str] = {"cosine": "<=>", "l2": "<->", "dot": "<#>"}
CLASSES: dict[Metric, str] = {"cosine": "cosine_ops", "l2": "l2_ops", "dot": "ip_ops"}


class Vector(UserDefinedType[str]):
    """`vector(128)` or `halfvec(128)`, in text: `[1.0,2.0,…]`."""

    cache_ok = True

    def __init__(self, dim: int, kind: str = "vector") -> None:
        self.dim, self.kind = dim, kind

    def get_col_spec(self, **_: Any) -> str:
        return f"{self.kind}({int(self.dim)})"


class _IndexTarget(NamedTuple):
    table: str
    name: str  # of its index


def vector_table(catalogue: Catalogue, number: int, part: int | None = None) -> str:
    return catalogue.name(f"vectors_{int(number)}" + ("" if part is None else f"_{int(part)}"))


class HnswBuilder:
    def __init__(self, catalogue: Catalogue, *, url: str, partitions: int, half: bool) -> None:
        self._catalogue, self._url = catalogue, url
        self._partitions, self._half = partitions, half

    def kind(self, space: Space) -> str | None:
        """What the index of a space holds; None if pgvector cannot index so many dimensions."""
        if space.dim > HALF_DIMS:
            return None
        return "halfvec" if self._half or space.dim > INDEX_DIMS else "vector"

    # ---- what there is

    def needed(self, number: int, space: Space) -> bool:
        targets = self._targets(number)
        built = self._valid(targets) == {target.name: True for target in targets}
        if built or self.kind(space) is None:
            return False
        table = vector_table(self._catalogue, number)
        return bool(self._ask(f'SELECT 1 FROM "{table}" OFFSET {INDEX_FROM - 1} LIMIT 1'))

    def present(self, number: int) -> bool:
        """Some part of the space has an index, so that a search may have been approximate."""
        names = [target.name for target in self._targets(number)]
        statement = "SELECT 1 FROM pg_class WHERE relkind = 'i' AND relname = ANY(%s) LIMIT 1"
        return bool(self._ask(statement, (names,)))

    def status(self, number: int, space: Space) -> IndexStatus:
        targets = self._targets(number)
        valid = self._valid(targets)
        counts = {
            target: int(self._ask(f'SELECT count(*) FROM "{target.table}"')[0][0])
            for target in targets
        }
        rows = sum(counts.values())
        unindexed = sum(counts[target] for target in targets if not valid.get(target.name))
        state: IndexState = "none"
        failure = None
        if valid and all(valid.get(target.name) for target in targets):
            state = "ready"
        elif self.kind(space) is not None and self._ask(HELD, (self._key(number),)):
            state = "building"
        elif valid:
            state, failure = "failed", "the last build was interrupted; build it again"
        kind = "hnsw" if valid else "flat"
        return IndexStatus(rows, kind, state, unindexed=unindexed, failure=failure)

    def _targets(self, number: int) -> list[_IndexTarget]:
        name = self._catalogue.name(f"hnsw_{int(number)}")
        if not self._partitions:
            return [_IndexTarget(vector_table(self._catalogue, number), name)]
        return [
            _IndexTarget(vector_table(self._catalogue, number, part), f"{name}_{part}")
            for part in range(self._partitions)
        ]

    def _valid(self, targets: list[_IndexTarget]) -> dict[str, bool]:
        """Those that are there: is the index whole?"""
        indexes = self._ask(
            "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = indexrelid "
            "WHERE i.indrelid = ANY(SELECT to_regclass(quote_ident(name)) FROM unnest(%s::text[]) "
            "AS t (name)) AND c.relname = ANY(%s)",
            ([target.table for target in targets], [target.name for target in targets]),
        )
        return dict(indexes)

    # ---- building

    def build(self, number: int, space: Space) -> None:
        """Whoever comes second waits until the first is done and finds the index there."""
        if not self.needed(number, space):
            return
        kind, graph = self.kind(space), GRAPH_BYTES + 4 * space.dim
        column = "vector" if kind == "vector" else f"(vector::halfvec({int(space.dim)}))"
        for target in self._targets(number):
            statement = (
                f'CREATE INDEX CONCURRENTLY "{target.name}" ON "{target.table}" '
                f"USING hnsw ({column} {kind}_{CLASSES[space.metric]})"
            )
            with self._locked(number):
                while self._ask(RUNNING, (target.table,)):
                    time.sleep(POLL_SECONDS)  # of a process that lost the connection of its lock
                self._build(target, statement, {**UNHURRIED, **self._memory(target, graph)})

    def _build(self, target: _IndexTarget, statement: str, settings: dict[str, str]) -> None:
        from psycopg.errors import DiskFull

        valid = self._valid([target])
        if valid.get(target.name):
            return
        try:
            with self._connect(settings) as connection:
                if valid:  # left by a build that was interrupted
                    connection.execute(f'DROP INDEX CONCURRENTLY IF EXISTS "{target.name}"')
                connection.execute(statement)
                connection.execute(f'ANALYZE "{target.table}"')
        except StoreError as error:
            cause = error.__cause__
            if not isinstance(cause, DiskFull) or "shared memory" not in str(cause):
                raise
            if ALONE.items() <= settings.items():
                raise
            self._build(target, statement, {**settings, **ALONE})

    def _memory(self, target: _IndexTarget, row_bytes: int) -> dict[str, str]:
        """For a build: what the graph needs, but no more than the server has as its cache."""
        ((rows, own, cache),) = self._ask(
            "SELECT count(*), pg_size_bytes(current_setting('maintenance_work_mem')), "
            f"pg_size_bytes(current_setting('shared_buffers')) FROM \"{target.table}\""
        )
        return {"maintenance_work_mem": f"{int(max(own, min(cache, rows * row_bytes))) // 1024}kB"}

    def run_alone(self, unfinished: str | None, statement: str) -> None:
        """CREATE INDEX CONCURRENTLY on a table that is not ours."""
        with self._connect({**UNHURRIED, **ALONE}) as connection:
            if unfinished is not None:
                connection.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {unfinished}")
            connection.execute(statement)

    def cancel(self, connection: Connection, number: int) -> None:
        """End builds on this space, which is about to be dropped, and vacuums."""
        connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")  # who is there now
        for target in self._targets(number):
            connection.exec_driver_sql(
                "SELECT pg_cancel_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid) "
                "WHERE relation = to_regclass(quote_ident(%s)) AND usename = current_user "
                "AND mode = 'ShareUpdateExclusiveLock' AND pid <> pg_backend_pid()",
                (target.table,),
            )

    def vacuum(self, numbers: list[int]) -> None:
        """Not while an index is built: the two would wait for each other."""
        for number in numbers:
            with self._locked(number), self._connect(UNHURRIED) as connection:
                connection.execute(f'VACUUM (ANALYZE) "{vector_table(self._catalogue, number)}"')

    # ---- below

    def _ask(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._catalogue.ask(statement, values)

    def _key(self, number: int) -> int:
        """Of the advisory lock for a space: 64 bits with a sign."""
        name = f"midspan index {vector_table(self._catalogue, number)}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)

    @contextmanager
    def _locked(self, number: int) -> Iterator[None]:
        """Held by an open transaction on a connection of its own.

        Waits by asking again and again: inside a statement it would hold a snapshot, and a build
        waits for every snapshot that is older than itself. For the same reason there are no
        parameters: a statement that has some keeps its snapshot until the next one.
        """
        take = f"SELECT pg_try_advisory_xact_lock({self._key(number)})"
        while True:
            with self._connect({}, autocommit=False) as connection:
                connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
                if connection.execute(take).fetchone()[0]:
                    yield
                    return
            time.sleep(POLL_SECONDS)

    @contextmanager
    def _connect(self, settings: dict[str, str], *, autocommit: bool = True) -> Iterator[Any]:
        """Settings travel with the first message, so that none of them stays in a pooler's
        connection; a pooler that refuses them gets none."""
        import psycopg

        given = psycopg.conninfo.conninfo_to_dict(self._url).get("options") or ""
        options = " ".join([str(given), *(f"-c {name}={settings[name]}" for name in settings)])
        with self._catalogue.errors():
            try:
                url = psycopg.conninfo.make_conninfo(self._url, options=options)
                connection = self._open(url, autocommit)
            except psycopg.OperationalError as error:
                if "startup parameter" not in str(error):
                    raise
                connection = self._open(self._url, autocommit)
            with closing(connection):
                yield connection

    def _open(self, url: str, autocommit: bool) -> Any:
        import psycopg

        return psycopg.connect(
            url, autocommit=autocommit, connect_timeout=CONNECT_SECONDS, prepare_threshold=None
        )


# ---- spaces that are columns of an application's table: read through views, never written --------
# A view has the rows and vectors of a space like any table of ours, and `indexed`: the vector as
# the application's own index holds it.


class AdoptedColumns:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._seen: tuple[int, TableBinding | None] | None = None  # the state's version, and what
        self._indexes: dict[tuple[int, int], VectorIndex | None] = {}  # by version and space

    def binding(self) -> TableBinding | None:
        """As it is now: a hand-over changes it, in whichever process."""
        if self._seen is not None and self._seen[1] is None:
            return None  # a gallery of our own stays one
        version = self._catalogue.snapshot().state.version
        if self._seen is None or self._seen[0] != version:
            text = self._catalogue.settings().get(SETTING)
            self._seen = (version, None if text is None else TableBinding.from_json(text))
            self._indexes.clear()
        return self._seen[1]

    def numbers(self) -> frozenset[int]:
        binding = self.binding()
        return frozenset() if binding is None else frozenset(binding.columns)

    def refuse(self, number: int) -> None:
        binding = self.binding()
        if binding is not None and number in binding.columns:
            raise GalleryError(
                f"{self._catalogue.shown}: the vectors of space {number} are the column "
                f"{binding.columns[number]} of {binding.shown}, which its application writes; "
                "write them there"
            )

    def index(self, number: int, space: Space) -> VectorIndex | None:
        """The application's own that serves searches of this space."""
        binding = self.binding()
        if binding is None or number not in binding.columns:
            return None
        assert self._seen is not None
        key = (self._seen[0], number)
        if key not in self._indexes:
            ((oid,),) = self._catalogue.ask(
                "SELECT to_regclass(%s)::oid::bigint", (binding.relation,)
            )
            database, column = self._catalogue.database, binding.columns[number]
            index, metric = vector_index(database, oid, column, binding.vector_type)
            serves = index is not None and index.whole and metric == space.metric
            self._indexes[key] = index if serves else None
        return self._indexes[key]

    def status(self, number: int, space: Space, *, rows: int) -> IndexStatus:
        self._indexes.clear()  # it may be new
        index = self.index(number, space)
        state: IndexState = "none" if index is None else "ready"
        kind = "flat" if index is None else index.method
        return IndexStatus(rows, kind, state, unindexed=rows if index is None else 0)


# ---- the few rows that count in a space ----------------------------------------------------------

FEW = 1_000  # fewer are compared one by one, in about the time that HNSW takes
LOOK_SECONDS = 10.0  # between two looks
OLD_SECONDS = 600.0  # after which the list is made again


class RemainingRows(NamedTuple):
    rows: tuple[int, ...]
    mark: int  # rows above it are newer


class _CachedRemainder(NamedTuple):
    few: RemainingRows | None  # None: they are many
    made: float
    looked: float


class RemainderCache:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._known: dict[tuple[int, ...], _CachedRemainder] = {}
        self._lock = threading.Lock()

    def of(self, better: tuple[int, ...]) -> RemainingRows | None:
        """Rows that hold every item without a vector in any of these spaces; None if many."""
        known = self._known.get(better)
        now = time.monotonic()
        if known is not None and now < known.looked + LOOK_SECONDS:
            return known.few
        if not self._lock.acquire(blocking=known is None):  # somebody looks already
            return None if known is None else known.few
        try:
            known = self._known.get(better)
            if known is None or now >= known.looked + LOOK_SECONDS:
                known = self._look(better, known, now)
                self._known[better] = known
            return known.few
        finally:
            self._lock.release()

    def _look(
        self, better: tuple[int, ...], known: _CachedRemainder | None, now: float
    ) -> _CachedRemainder:
        few = None if known is None or now >= known.made + OLD_SECONDS else known.few
        if known is not None and few is not None and self._newest() - few.mark <= FEW:
            return known._replace(looked=now)
        if len(self._lacking(better)) > FEW:
            return _CachedRemainder(None, now, now)
        with self._catalogue.database.writing(exclusive=True):  # nobody is in the middle of a write
            mark = self._newest()
        rows = self._lacking(better)
        return _CachedRemainder(RemainingRows(rows, mark) if len(rows) <= FEW else None, now, now)

    def _newest(self) -> int:
        name = self._catalogue.tables.row_numbers.name
        return int(self._catalogue.ask(f'SELECT last_value FROM "{name}"')[0][0])

    def _lacking(self, better: tuple[int, ...]) -> tuple[int, ...]:
        tables = self._catalogue.tables
        records = self._catalogue.ask(
            f'SELECT i."row" FROM "{tables.items.name}" i WHERE NOT EXISTS (SELECT 1 FROM '
            f'"{tables.stored.name}" s WHERE s.space = ANY(%s) AND s."row" = i."row") LIMIT %s',
            (list(better), FEW + 1),
        )
        return tuple(row for (row,) in records)
