"""Search: PostgreSQL finds candidates in one statement for each query; scores are made here.

HNSW alone loses hits when few rows pass a filter. So its scan continues until enough were found
(`hnsw.iterative_scan`), up to a bound; a space that still gave too few is then searched without it.

Where some rows of a space have a vector in a better one, HNSW gives the nearest of all of them and
those that count are kept: a scan that looked for them would visit most of the graph when few are
left. The farthest row that was seen bounds the score of every other, so a search looks farther
only while a row that it has not seen could still be among the best.

Settings and statements travel in one message, as one transaction: a search costs one round trip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from midspan.errors import GalleryError
from midspan.gallery.catalogue.postgresql import Postgresql
from midspan.gallery.engines.base import Candidates, SearchRequest, pair_scores, prepare
from midspan.gallery.engines.pgvector_index import (
    OPERATORS,
    AdoptedColumns,
    HnswBuilder,
    RemainderCache,
    RemainingRows,
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
MOST_SEEN = 5_000  # nearest rows looked at for those that count, before all are compared
# Rows that a scan of HNSW visits before all rows are compared instead. Visiting one took 23 µs,
# comparing one in a scan of the table 1.5 (200,000 x 128-d), so more seldom pays.
SCAN_ROWS = 40_000
PROBES = 20  # lists of IVFFlat that are looked into at once; the scan continues until enough
SCAN_MEMORY = 16  # times work_mem, for those rows
TOGETHER = 64  # queries in one message
TEXTS = 64  # statements that are remembered
ATTEMPTS = 8  # when a search meets the drop of a space


class SpaceQuery(NamedTuple):
    """One space of a search, and how it is searched."""

    number: int
    better: tuple[int, ...]  # rows that have a vector in these do not count here
    exact: bool
    few: RemainingRows | None = None  # only these rows can count

    @property
    def thinned(self) -> bool:
        """The nearest rows are read first, and then those that count are kept."""
        return bool(self.better) and not self.exact


class _Look(NamedTuple):
    """How one query is asked."""

    parts: tuple[SpaceQuery, ...]
    fetch: int  # rows of each part
    seen: int  # nearest rows of a thinned part

    def limit(self, part: SpaceQuery) -> int:
        return self.seen if part.thinned else self.fetch

    def exactly(self, numbers: Collection[int]) -> _Look:
        parts = (
            part._replace(exact=True) if part.number in numbers else part for part in self.parts
        )
        return self._replace(parts=tuple(parts))

    def farther(self) -> _Look:
        wider = self._replace(fetch=4 * self.fetch, seen=4 * self.seen)
        return wider.exactly([part.number for part in wider.parts if wider.seen > MOST_SEEN])


class _ScoredRows(NamedTuple):
    spaces: IntArray  # (n,)
    rows: IntArray  # (n,)
    scores: FloatArray  # (n,)
    seen: dict[int, int]  # by space: rows that were looked at
    far: dict[int, float]  # by space: the distance of the farthest of them


class PgvectorSearcher:
    def __init__(
        self,
        catalogue: Catalogue,
        builder: HnswBuilder,
        adopted: AdoptedColumns,
        space: Callable[[int], Space],
    ) -> None:
        assert isinstance(catalogue.database, Postgresql)
        self._catalogue, self._database = catalogue, catalogue.database
        self._builder, self._adopted, self._space = builder, adopted, space
        self._remainders = RemainderCache(catalogue)
        # Statements, and the values of their filters; by what they look for.
        self._texts: dict[tuple[tuple[SpaceQuery, ...], str], tuple[str, Any]] = {}

    def search(self, request: SearchRequest) -> list[Candidates]:
        for attempt in range(ATTEMPTS):
            try:
                return self._once(request)
            except GalleryError as error:
                if attempt == ATTEMPTS - 1 or not self._database.contended(error):
                    raise
        raise AssertionError("unreachable")

    def _once(self, request: SearchRequest) -> list[Candidates]:
        space = self._space(request.among[0])
        parts = self._parts(request)
        candidates = list[Candidates]()
        for start in range(0, len(request.vectors), TOGETHER):
            candidates += self._best(
                request, request.vectors[start : start + TOGETHER], space, parts
            )
        return candidates

    def _parts(self, request: SearchRequest) -> tuple[SpaceQuery, ...]:
        betters = [request.live[: request.live.index(number)] for number in request.among]
        few = [self._remainders.of(better) if better else None for better in betters]
        return tuple(
            SpaceQuery(number, better, exact=request.exact or some is not None, few=some)
            for number, better, some in zip(request.among, betters, few, strict=True)
        )

    def _best(
        self,
        request: SearchRequest,
        vectors: FloatArray,
        space: Space,
        parts: tuple[SpaceQuery, ...],
    ) -> list[Candidates]:
        """One round trip, and one more for queries whose answer could still change."""
        fetch, ef = request.k + EXTRA, _hnsw_candidates(request)
        # A rare filter makes each row that passes it dear.
        seen = 2 * fetch if request.filter is not None else max(ef, 2 * fetch)
        results: list[Candidates | None] = [None] * len(vectors)
        pending = dict.fromkeys(range(len(vectors)), _Look(parts, fetch, seen))
        while pending:
            texts = [self._text(request, look, space) for look in pending.values()]
            given = [
                {"query": _literal(vectors[place]), "fetch": look.fetch, "seen": look.seen}
                for place, look in pending.items()
            ]
            answers = self._database.ask_together(
                _settings(ef),
                [(text, {**own, **more}) for (text, own), more in zip(texts, given, strict=True)],
            )
            asked, pending = pending, {}
            for (place, look), records in zip(asked.items(), answers, strict=True):
                rows = _scored(records, vectors[place], look, space)
                after = self._after(request, vectors[place], look, rows, metric=space.metric)
                if isinstance(after, _Look):
                    pending[place] = after
                else:
                    results[place] = after
        return [one for one in results if one is not None]

    def _after(
        self,
        request: SearchRequest,
        vector: FloatArray,
        look: _Look,
        rows: _ScoredRows,
        *,
        metric: Metric,
    ) -> Candidates | _Look:
        """The answer, or how to look once more."""
        short = [part for part in look.parts if rows.seen[part.number] < look.limit(part)]
        doubtful = [part.number for part in short if not part.exact]
        if any(self._approximate(number) for number in doubtful):
            return look.exactly(doubtful)
        cut = [rows.far[part.number] for part in look.parts if part not in short]
        bound = _bound(min(cut), vector, metric=metric) if cut else None
        # Searched without what supersedes its rows: the caller sees whether the bound matters.
        apart = any(part.thinned and set(part.better) - set(request.among) for part in look.parts)
        best = np.sort(rows.scores)[::-1]
        if bound is None or apart or (len(best) >= request.k and best[request.k - 1] > bound):
            return _candidates(rows, k=request.k, bound=bound)
        return look.farther()

    def _approximate(self, number: int) -> bool:
        """Some part of the space has an index, which may have left out rows."""
        if number in self._adopted.numbers():
            return self._adopted.index(number, self._space(number)) is not None
        return self._builder.present(number)

    def _text(self, request: SearchRequest, look: _Look, space: Space) -> tuple[str, Any]:
        """The statement and the values of its filter."""
        adopted = self._adopted.numbers()  # a hand-over makes another statement of the same
        key = (look.parts, repr(request.filter))  # 1 and True are equal, but not as filters
        if adopted or key not in self._texts:
            selects = [one for part in look.parts for one in self._select(part, request, space)]
            statement = sa.union_all(*selects).compile(
                dialect=self._database.sql_dialect,
                compile_kwargs={"render_postcompile": True},
            )
            if len(self._texts) >= TEXTS:
                self._texts.clear()
            self._texts[key] = str(statement), statement.params
        return self._texts[key]

    def _select(
        self, part: SpaceQuery, request: SearchRequest, space: Space
    ) -> list[sa.Select[Any]]:
        """The nearest rows of one space that pass and that no better space has; of a thinned part
        also how many were seen, and the distance of the farthest."""
        catalogue, operator = self._catalogue, OPERATORS[space.metric]
        own = _vectors(catalogue, part.number, "v", space.dim)
        query = sa.bindparam("query", None, sa.Text())
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
        near = sa.select(own.c.row, plain.label("distance"), own.c.vector).select_from(own)
        if part.few is not None:
            rows = sa.bindparam(None, list(part.few.rows), type_=sa.ARRAY(sa.BigInteger()))
            near = near.where(sa.or_(own.c.row == sa.any_(rows), own.c.row > part.few.mark))
        if request.filter is not None:
            items = catalogue.tables.items
            near = near.join(items, items.c.row == own.c.row).where(catalogue.where(request.filter))
        if not part.thinned:
            near = self._counting(near, part, own.c.row, space)
        limit = sa.bindparam("seen" if part.thinned else "fetch", 0, sa.BigInteger())
        nearest = near.order_by(order).limit(limit).cte(f"near{int(part.number)}")
        nearest = nearest.prefix_with("MATERIALIZED")
        number = sa.literal_column(str(int(part.number)), sa.BigInteger()).label("space")
        sent = sa.type_coerce(sa.func.vector_send(nearest.c.vector), sa.LargeBinary()).label("sent")
        kept = sa.select(number, nearest.c.row, nearest.c.distance, sent)
        if not part.thinned:
            return [kept]
        nothing = sa.literal_column("NULL", sa.LargeBinary())
        farthest = sa.select(number, -sa.func.count(), sa.func.max(nearest.c.distance), nothing)
        kept = self._counting(kept, part, nearest.c.row, space).order_by(nearest.c.distance)
        inner = kept.limit(sa.bindparam("fetch", 0, sa.BigInteger())).subquery()
        return [sa.select(inner), farthest.select_from(nearest)]

    def _counting(
        self, statement: sa.Select[Any], part: SpaceQuery, row: Any, space: Space
    ) -> sa.Select[Any]:
        """Without the rows that have a vector in a better space."""
        for number in part.better:
            other = _vectors(self._catalogue, number, f"b{int(number)}", space.dim)
            superseded: sa.Select[Any] = sa.select(sa.literal_column("1")).where(other.c.row == row)
            statement = statement.where(~superseded.correlate(row.table).exists())
        return statement

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


def _hnsw_candidates(request: SearchRequest) -> int:
    """Each of several spaces gives a share of the k best only, and gets by with fewer: of 100,000
    x 128-d, half of them superseded, 100 found 0.99 of the five nearest, as 200 did."""
    return min(MOST_EF, max(EF_SEARCH // len(request.live), 2 * (request.k + EXTRA)))


def _settings(ef: int) -> str:
    """For this transaction. Relaxed, because strict order leaves out what it finds too late."""
    return (
        f"SET LOCAL hnsw.ef_search = {ef}; "
        "SET LOCAL hnsw.iterative_scan = 'relaxed_order'; "
        f"SET LOCAL hnsw.max_scan_tuples = {SCAN_ROWS}; "
        f"SET LOCAL hnsw.scan_mem_multiplier = {SCAN_MEMORY}; "
        f"SET LOCAL ivfflat.probes = {PROBES}; "  # of an application's own index
        "SET LOCAL ivfflat.iterative_scan = 'relaxed_order'; "
        "SET LOCAL jit = off"
    )


def _literal(vector: FloatArray) -> str:
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def _scored(
    records: list[tuple[Any, ...]], vector: FloatArray, look: _Look, space: Space
) -> _ScoredRows:
    rows = [record for record in records if record[3] is not None]
    matrix = from_binary([row[3] for row in rows], space.dim)
    query = prepare(vector[None], metric=space.metric)[0]
    scores = pair_scores(query, prepare(matrix, metric=space.metric), metric=space.metric)
    seen, far = dict[int, int](), dict[int, float]()
    for part in look.parts:
        if part.thinned:
            ((count, farthest),) = [
                (-record[1], record[2])
                for record in records
                if record[0] == part.number and record[3] is None
            ]
            seen[part.number], far[part.number] = count, farthest
        else:
            distances = [row[2] for row in rows if row[0] == part.number]
            seen[part.number], far[part.number] = len(distances), max(distances, default=math.inf)
    return _ScoredRows(
        spaces=np.array([row[0] for row in rows], dtype=np.int64),
        rows=np.array([row[1] for row in rows], dtype=np.int64),
        scores=scores,
        seen=seen,
        far=far,
    )


def from_binary(vectors: list[bytes], dim: int) -> FloatArray:
    """(N, D) of what `vector_send` gives: two short numbers, then big-endian floats."""
    flat = np.frombuffer(b"".join(vectors), dtype=np.uint8).reshape(-1, 4 + 4 * dim)
    floats: FloatArray = np.ascontiguousarray(flat[:, 4:]).view(">f4").astype(np.float32)
    return floats


def _bound(distance: float, vector: FloatArray, *, metric: Metric) -> float:
    """The highest score that a row at this distance or farther may have."""
    if metric == "l2":
        return -(distance**2) * (1 - 2 * TOLERANCE)
    if metric == "dot":
        return -distance + TOLERANCE * max(abs(distance), float(np.linalg.norm(vector)))
    return 1 - distance + TOLERANCE


def _candidates(rows: _ScoredRows, *, k: int, bound: float | None) -> Candidates:
    """The k best and those that equal the last of them. bound: None if no other row passes."""
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
        complete=bound is None and count == len(order),
        bound=bound if count == len(order) else None,
    )
