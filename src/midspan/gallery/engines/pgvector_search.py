"""Search: PostgreSQL finds candidates in one statement for each query; scores are made here.

HNSW alone loses hits when few rows pass a filter or few are left to an old space. So its scan goes
on until enough were found (`hnsw.iterative_scan`), up to a bound; a space that still gave too few
is then searched without it. Settings hold for one transaction only.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from midspan.errors import GalleryError
from midspan.gallery.engines.base import Candidates, SearchRequest, pair_scores, prepare
from midspan.gallery.engines.pgvector_index import (
    OPERATORS,
    AdoptedColumns,
    HnswBuilder,
    Vector,
    vector_table,
)
from midspan.spaces import FloatArray, IntArray, Metric, Space

if TYPE_CHECKING:
    from midspan.gallery.catalogue.catalogue import Catalogue


EXTRA = 16  # candidates beyond k, for equal scores
TOLERANCE = 1e-5  # by which the server's float32 distances may be off, relatively
# Candidates that HNSW keeps: 64 found 0.906 of the true neighbours of 100,000 hard vectors.
EF_SEARCH, MOST_EF = 200, 1000
# Rows that a scan of HNSW visits before all rows are compared instead. Visiting one took 23 µs,
# comparing one in a scan of the table 1.5 (200,000 x 128-d), so more seldom pays.
SCAN_ROWS = 40_000
PROBES = 20  # lists of IVFFlat that are looked into at once; the scan continues until enough
SCAN_MEMORY = 16  # times work_mem, for those rows
ATTEMPTS = 8  # when a search meets the drop of a space


class SpaceQuery(NamedTuple):
    """One space of a search, and how it is searched."""

    number: int
    better: tuple[int, ...]  # rows that have a vector in these do not count here
    exact: bool
    few: RemainingRows | None = None  # only these rows can count


class _ScoredRows(NamedTuple):
    spaces: IntArray  # (n,)
    rows: IntArray  # (n,)
    distances: FloatArray  # (n,) as the server sees them
    scores: FloatArray  # (n,)


class PgvectorSearcher:
    def __init__(
        self,
        catalogue: Catalogue,
        builder: HnswBuilder,
        adopted: AdoptedColumns,
        space: Callable[[int], Space],
    ) -> None:
        self._catalogue, self._builder, self._space = catalogue, builder, space
        self._adopted = adopted
        self._remainders = RemainderCache(catalogue)
        self._texts: dict[tuple[SpaceQuery, ...], str] = {}  # of searches without a filter

    def search(self, request: SearchRequest) -> list[Candidates]:
        for attempt in range(ATTEMPTS):
            try:
                return self._once(request)
            except GalleryError as error:
                if attempt == ATTEMPTS - 1 or not self._catalogue.database.contended(error):
                    raise
        raise AssertionError("unreachable")

    def _once(self, request: SearchRequest) -> list[Candidates]:
        space = self._space(request.among[0])
        parts = self._parts(request)
        with self._catalogue.reading() as connection:
            connection.exec_driver_sql(_settings(request.k + EXTRA, parts=len(request.among)))
            return [
                self._best(connection, request, vector, space, parts) for vector in request.vectors
            ]

    def _parts(self, request: SearchRequest) -> list[SpaceQuery]:
        betters = [request.live[: request.live.index(number)] for number in request.among]
        few = [self._remainders.of(better) if better else None for better in betters]
        return [
            SpaceQuery(number, better, exact=request.exact or some is not None, few=some)
            for number, better, some in zip(request.among, betters, few, strict=True)
        ]

    def _best(
        self,
        connection: sa.Connection,
        request: SearchRequest,
        vector: FloatArray,
        space: Space,
        parts: list[SpaceQuery],
    ) -> Candidates:
        fetch, parts = request.k + EXTRA, list(parts)
        while True:
            rows = self._ask(connection, request, vector, space, parts, fetch=fetch)
            counts = {part.number: int((rows.spaces == part.number).sum()) for part in parts}
            short = [
                place
                for place, part in enumerate(parts)
                if not part.exact and counts[part.number] < fetch
            ]
            if any(self._approximate(connection, parts[place].number) for place in short):
                for place in short:
                    parts[place] = parts[place]._replace(exact=True)
                continue
            cut = [part.number for part in parts if counts[part.number] >= fetch]
            if not cut or _enough(rows, cut, vector, k=request.k, metric=space.metric):
                return _candidates(rows, k=request.k, complete=not cut)
            fetch *= 4

    def _approximate(self, connection: sa.Connection, number: int) -> bool:
        """Some part of the space has an index, which may have left out rows."""
        if number in self._adopted.numbers():
            return self._adopted.index(number, self._space(number)) is not None
        return self._builder.present(connection, number)

    def _ask(
        self,
        connection: sa.Connection,
        request: SearchRequest,
        vector: FloatArray,
        space: Space,
        parts: list[SpaceQuery],
        *,
        fetch: int,
    ) -> _ScoredRows:
        values = {"query": "[" + ",".join(map(repr, vector.tolist())) + "]", "fetch": fetch}
        plain = request.filter is None and not any(part.few for part in parts)
        plain &= not self._adopted.numbers()  # a hand-over makes another statement of the same
        text = self._texts.get(tuple(parts)) if plain else None
        if text is None:
            statement = sa.union_all(*(self._select(part, request, space) for part in parts))
            rows = connection.execute(statement, values).fetchall()
            if plain:
                self._texts[tuple(parts)] = str(statement.compile(dialect=connection.dialect))
        else:
            rows = connection.exec_driver_sql(text, values).fetchall()
        matrix = from_binary([row[3] for row in rows], space.dim)
        query = prepare(vector[None], metric=space.metric)[0]
        scores = pair_scores(query, prepare(matrix, metric=space.metric), metric=space.metric)
        return _ScoredRows(
            spaces=np.array([row[0] for row in rows], dtype=np.int64),
            rows=np.array([row[1] for row in rows], dtype=np.int64),
            distances=np.array([row[2] for row in rows], dtype=np.float64),
            scores=scores,
        )

    def _select(self, part: SpaceQuery, request: SearchRequest, space: Space) -> sa.Select[Any]:
        """The nearest rows of one space that pass and that no better space has."""
        catalogue, operator = self._catalogue, OPERATORS[space.metric]
        own = _vectors(catalogue, part.number, "v", space.dim)
        query = sa.bindparam("query", type_=Vector(space.dim))
        plain = own.c.vector.op(operator, return_type=sa.Double())(
            sa.cast(query, Vector(space.dim))
        )
        order: Any = plain + sa.literal_column("0.0", sa.Float())  # no index knows the sum
        indexed = self._indexed_kind(part.number, space)
        if not part.exact and indexed is not None:
            kind = Vector(space.dim, indexed)
            held = own.c.vector if indexed == "vector" else sa.cast(own.c.vector, kind)
            if part.number in self._adopted.numbers():
                held = own.c.indexed
            order = held.op(operator, return_type=sa.Double())(sa.cast(query, kind))
        statement = sa.select(
            sa.literal_column(str(int(part.number)), sa.BigInteger()).label("space"),
            own.c.row,
            plain.label("distance"),
            sa.type_coerce(sa.func.vector_send(own.c.vector), sa.LargeBinary()).label("vector"),
        ).select_from(own)
        for number in part.better:
            other = _vectors(catalogue, number, f"b{int(number)}", space.dim)
            superseded: sa.Select[Any] = sa.select(sa.literal_column("1")).where(
                other.c.row == own.c.row
            )
            statement = statement.where(~superseded.correlate(own).exists())
        if part.few is not None:
            rows = sa.bindparam(None, list(part.few.rows), type_=sa.ARRAY(sa.BigInteger()))
            statement = statement.where(
                sa.or_(own.c.row == sa.any_(rows), own.c.row > part.few.mark)
            )
        if request.filter is not None:
            items = catalogue.tables.items
            statement = statement.join(items, items.c.row == own.c.row).where(
                catalogue.where(request.filter)
            )
        nearest = statement.order_by(order).limit(sa.bindparam("fetch", type_=sa.BigInteger()))
        inner = nearest.subquery(f"p{int(part.number)}")
        return sa.select(inner.c.space, inner.c.row, inner.c.distance, inner.c.vector)

    def _indexed_kind(self, number: int, space: Space) -> str | None:
        if number not in self._adopted.numbers():
            return self._builder.kind(space)
        index = self._adopted.index(number, space)
        return None if index is None else index.kind


def _vectors(catalogue: Catalogue, number: int, alias: str, dim: int) -> Any:
    name = sa.quoted_name(vector_table(catalogue, number), True)
    columns = (
        sa.column(sa.quoted_name("row", True), sa.BigInteger()),
        sa.column("vector", Vector(dim)),
        sa.column("indexed", Vector(dim)),  # of adopted spaces only
    )
    return sa.table(name, *columns).alias(alias)


def _settings(fetch: int, *, parts: int) -> str:
    """For this transaction. Relaxed, because strict order leaves out what it finds too late.

    Each of several spaces gives a share of the k best only, and gets by with fewer candidates.
    """
    ef = min(MOST_EF, max(int(EF_SEARCH / math.sqrt(parts)), 2 * fetch))
    return (
        f"SET LOCAL hnsw.ef_search = {ef}; "
        "SET LOCAL hnsw.iterative_scan = 'relaxed_order'; "
        f"SET LOCAL hnsw.max_scan_tuples = {SCAN_ROWS}; "
        f"SET LOCAL hnsw.scan_mem_multiplier = {SCAN_MEMORY}; "
        f"SET LOCAL ivfflat.probes = {PROBES}; "  # of an application's own index
        "SET LOCAL ivfflat.iterative_scan = 'relaxed_order'; "
        "SET LOCAL jit = off"
    )


def from_binary(vectors: list[bytes], dim: int) -> FloatArray:
    """(N, D) of what `vector_send` gives: two short numbers, then big-endian floats."""
    flat = np.frombuffer(b"".join(vectors), dtype=np.uint8).reshape(-1, 4 + 4 * dim)
    floats: FloatArray = np.ascontiguousarray(flat[:, 4:]).view(">f4").astype(np.float32)
    return floats


def _enough(
    rows: _ScoredRows, cut: list[int], vector: FloatArray, *, k: int, metric: Metric
) -> bool:
    """No row that a part left out, being farther than its last, can be among the k best."""
    if len(rows.scores) < k:
        return False
    last = min(rows.distances[rows.spaces == number].max() for number in cut)
    worst = float(np.sort(rows.scores)[-k])
    if metric == "l2":
        return bool(-(last**2) < worst - TOLERANCE * (abs(worst) + last**2))
    if metric == "dot":
        length = float(np.linalg.norm(vector))
        return bool(-last < worst - TOLERANCE * max(abs(worst), abs(last), length))
    return bool(1 - last < worst - TOLERANCE)


def _candidates(rows: _ScoredRows, *, k: int, complete: bool) -> Candidates:
    """The k best and those that equal the last of them."""
    order = np.lexsort((rows.rows, -rows.scores))
    scores = rows.scores[order]
    count = len(scores)
    if count > k:
        count = int((scores >= scores[k - 1]).sum())
    kept = order[:count]
    return Candidates(
        rows=rows.rows[kept],
        spaces=rows.spaces[kept],
        scores=rows.scores[kept],
        complete=complete and count == len(order),
    )


# ---- the few rows that count in a space ----------------------------------------------------------

FEW = 5_000  # fewer are compared one by one; HNSW would visit more rows than that to find them
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
