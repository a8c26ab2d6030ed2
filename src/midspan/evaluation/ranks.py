"""Ranks of the relevant items of every query, chunk by chunk in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.average_precision import NEVER
from midspan.errors import EvaluationError, VectorError
from midspan.evaluation.counting import ranks_of
from midspan.evaluation.relevance import NO_ROW, Ignored, Relevance, RowLists
from midspan.evaluation.scores import as_matrix, check_metric, middle, prepare, prepared_dim
from midspan.evaluation.search import ignored_rows
from midspan.evaluation.threads import Buffers, Threads
from midspan.evaluation.ties import Doubles, find_doubles, id_order, inverse, quick_keys
from midspan.spaces import Embeddings, FloatArray, IntArray, Metric, check_comparable

SCORE_BYTES = 16 * 2**20  # scores of one chunk of queries with the whole gallery …
MOST_SCORE_BYTES = 512 * 2**20  # … or this, before fewer than 64 queries go together
LINES = 64  # queries that are compared together


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some queries and where their relevant items stand."""

    queries: IntArray  # (q,)
    ranks: IntArray  # (q, R) 0-based, ascending, filled up with NEVER
    n: IntArray  # (q,) relevant items


def relevant_ranks(
    query: Embeddings | npt.NDArray[Any],
    gallery: Embeddings | npt.NDArray[Any],
    *,
    relevant: Relevance | Sequence[Any],
    metric: Metric | None = None,
    direct: bool = False,
    exclude: npt.NDArray[Any] | None = None,
    ignore: Sequence[npt.NDArray[Any]] | None = None,
    ignore_codes: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None,
) -> tuple[IntArray, IntArray]:
    """The ranks of each query's relevant items, and their number.

    Ignored rows are taken out before ranks are counted (and are not relevant); equal scores are in
    the order of ids or rows.

    Args:
        query: (Q, D) array or Embeddings.
        gallery: (G, D) array or Embeddings.
        relevant: A list of gallery rows for each query, or SameLabel.
        metric: As in `search_exact`.
        direct: As in `search_exact`.
        exclude: As in `search_exact`.
        ignore: As in `search_exact`.
        ignore_codes: As in `search_exact`.

    Returns:
        ((Q, R) 0-based ranks, ascending and filled up with NEVER, (Q,) numbers of relevant items).

    Raises:
        EvaluationError: There is not one list for each query, or a row is out of range.
        SpaceMismatch: Nothing connects the spaces of query and gallery.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> gallery = np.eye(3, dtype=np.float32)
        >>> ranks, count = ms.evaluation.relevant_ranks(gallery[:1], gallery, relevant=[[0]])
        >>> ranks.tolist(), count.tolist()
        ([[0]], [1])
    """
    scorer = Scorer.of(query, gallery, metric=metric, direct=direct)
    ignored = ignored_rows(
        exclude=exclude,
        ignore=ignore,
        ignore_codes=ignore_codes,
        n_queries=len(scorer.queries),
        n_gallery=scorer.n_gallery,
    )
    if isinstance(relevant, Sequence):
        if len(relevant) != len(scorer.queries):
            raise EvaluationError(f"{len(relevant)} lists for {len(scorer.queries)} queries")
        relevant = RowLists.of(relevant, n_gallery=scorer.n_gallery, what="relevant lists")
    width = int(relevant.counts.max(initial=0))
    ranks = np.full((len(scorer.queries), width), NEVER, dtype=np.int64)
    n = np.zeros(len(scorer.queries), dtype=np.int64)
    for chunk in rank_chunks(scorer, relevant=relevant, ignored=ignored):
        ranks[chunk.queries, : chunk.ranks.shape[1]] = chunk.ranks
        n[chunk.queries] = chunk.n
    return ranks, n


@dataclass(frozen=True, slots=True)
class Scorer:
    """Prepared vectors; the gallery stands in columns, by default those of `id_order`."""

    queries: FloatArray  # (Q, D')
    gallery: FloatArray  # (C, D')
    columns: IntArray | None  # (G,) column of each gallery row; None: the row itself
    keys: npt.NDArray[np.uint64]  # (G,) quick keys of the gallery rows
    doubles: Doubles  # by row

    @classmethod
    def of(
        cls,
        query: Embeddings | npt.NDArray[Any],
        gallery: Embeddings | npt.NDArray[Any],
        *,
        metric: Metric | None,
        direct: bool,
        row_at: IntArray | None = None,
    ) -> Scorer:
        """row_at: (C,) the gallery row of each column, NO_ROW for a filler."""
        both = isinstance(query, Embeddings) and isinstance(gallery, Embeddings)
        if both and not direct:
            check_comparable(query.space, gallery.space, override="direct")  # type: ignore[union-attr]
        if metric is None:
            metric = query.space.metric if isinstance(query, Embeddings) else "cosine"
        check_metric(metric)
        q, g = vectors_of(query, what="query"), vectors_of(gallery, what="gallery")
        if q.shape[1] != g.shape[1]:
            raise VectorError(f"query has {q.shape[1]} dimensions, gallery {g.shape[1]}")
        centre = middle(q, metric=metric)
        if row_at is None:
            row_at = id_order(gallery.ids if isinstance(gallery, Embeddings) else None)
        columns = None if row_at is None else inverse(row_at, length=len(g))
        n_columns = len(g) if row_at is None else len(row_at)
        width = prepared_dim(g.shape[1], metric=metric)
        prepared = np.zeros((n_columns, width), dtype=np.float32)
        keys = np.empty(len(g), dtype=np.uint64)

        def work(start: int, stop: int) -> None:
            rows = prepare(
                g[start:stop],
                metric=metric,
                what="gallery",
                side="gallery",
                centre=centre,
                first_row=start,
            )
            prepared[slice(start, stop) if columns is None else columns[start:stop]] = rows
            keys[start:stop] = quick_keys(g[start:stop])

        with Threads() as threads:
            threads.spread(work, len(g), step=2048)
        return cls(
            queries=prepare(q, metric=metric, what="query", side="query", centre=centre),
            gallery=prepared,
            columns=columns,
            keys=keys,
            doubles=find_doubles(keys, lambda: [g]),
        )

    @property
    def n_gallery(self) -> int:
        return len(self.keys)

    @property
    def n_columns(self) -> int:
        return len(self.gallery)

    def column(self, rows: IntArray) -> IntArray:
        return rows if self.columns is None else self.columns[rows]

    def scores(self, queries: IntArray, room: FloatArray) -> FloatArray:
        """(q, C) in the buffer that is given; 0 in columns without a row."""
        shape = len(queries), len(self.gallery)
        scores = room[: shape[0] * shape[1]].reshape(shape)
        np.matmul(self.queries[queries], self.gallery.T, out=scores)
        if len(self.doubles):
            scores[:, self.column(self.doubles.rows)] = scores[:, self.column(self.doubles.firsts)]
        return scores


def vectors_of(items: Embeddings | npt.NDArray[Any], *, what: str) -> npt.NDArray[Any]:
    return items.vectors if isinstance(items, Embeddings) else as_matrix(items, what=what)


def queries_at_once(n_gallery: int, threads: int) -> int:
    """Queries in a chunk; each thread has a chunk of its own."""
    line = 4 * max(1, n_gallery) * threads
    fewest = max(1, min(64, MOST_SCORE_BYTES // line))
    return min(2048, max(fewest, SCORE_BYTES // line))


def rank_chunks(scorer: Scorer, *, relevant: Relevance, ignored: Ignored) -> Iterator[Chunk]:
    """All queries, those with similar numbers of relevant items together."""
    counts = relevant.counts
    by_count = np.argsort(-counts, kind="stable")
    asked = by_count[counts[by_count] > 0]
    buffers = Buffers()
    with Threads(multiplications=float(len(asked)) * scorer.gallery.size) as threads:
        at_once = queries_at_once(scorer.n_gallery, threads.size)

        def ranked(start: int) -> Chunk:
            queries = asked[start : start + at_once]
            rows = countable(relevant, ignored, queries)
            scores = scorer.scores(queries, buffers.take("scores", len(queries) * scorer.n_columns))
            columns, thresholds = ranked_items(scorer, rows, scores)
            ignored.blank(scores, queries, scorer.columns)
            ranks = np.zeros(rows.shape, dtype=np.int64)
            for first in range(0, len(queries), LINES):
                some = slice(first, first + LINES)
                here = some, slice(0, int((columns[some] != NO_ROW).sum(axis=1).max(initial=0)))
                ranks[here] = ranks_of(scores[some], thresholds[here], columns[here])
            ranks[rows == NO_ROW] = NEVER
            ranks.sort(axis=1)
            return Chunk(queries=queries, ranks=ranks, n=(rows != NO_ROW).sum(axis=1))

        yield from threads.map(ranked, range(0, len(asked), at_once))
    nothing = by_count[counts[by_count] == 0]
    yield Chunk(
        queries=nothing,
        ranks=np.empty((len(nothing), 0), dtype=np.int64),
        n=np.zeros(len(nothing), dtype=np.int64),
    )


def countable(relevant: Relevance, ignored: Ignored, queries: IntArray) -> IntArray:
    """(q, R) relevant rows that are not ignored, first on their lines; the rest is NO_ROW."""
    rows = relevant.padded(queries)
    line, place = np.nonzero(rows != NO_ROW)
    drop = ignored.has(queries[line], rows[line, place])
    rows[line[drop], place[drop]] = NO_ROW
    return -np.sort(-rows, axis=1)


def ranked_items(scorer: Scorer, rows: IntArray, scores: FloatArray) -> tuple[IntArray, FloatArray]:
    """(q, R) columns of the rows and their scores; −1 and +inf where there is no row."""
    columns = np.where(rows == NO_ROW, NO_ROW, scorer.column(np.maximum(rows, 0)))
    values = np.take_along_axis(scores, np.maximum(columns, 0), axis=1)
    return columns, np.where(rows == NO_ROW, np.float32(np.inf), values)
