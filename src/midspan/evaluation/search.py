"""Exact search: the k best gallery rows of each query, in bounded memory.

Each thread takes blocks of the gallery and multiplies them with blocks of queries. Of the scores
only those that reach the k-th best so far are looked at; they are rare, so the search costs little
more than the multiplication. Equal scores stand in the order of the ids, or of the rows if there
are no ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError, VectorError
from midspan.evaluation.blocks import Blocks, open_blocks
from midspan.evaluation.relevance import NO_ROW, Ignored, RowLists, among
from midspan.evaluation.scores import as_matrix, check_metric, middle, prepare, prepared_dim
from midspan.evaluation.threads import Buffers, Threads
from midspan.evaluation.ties import Groups, find_doubles, id_order, inverse, quick_keys
from midspan.evaluation.topk import Best, pack, reaching
from midspan.spaces import Embeddings, FloatArray, IntArray, Metric, check_comparable

GALLERY_BLOCK = 8192  # rows; NumPy compares rows of more than 4096 numbers at full speed
QUERY_BLOCK = 512  # 512 × 8192 scores are 16 MiB, which the last cache can hold
STATE_BYTES = 128 * 2**20  # candidates of the queries that one pass over the gallery serves


def search_exact(
    query: Embeddings | npt.NDArray[Any],
    gallery: Embeddings | npt.NDArray[Any] | str | Path,
    *,
    k: int,
    metric: Metric | None = None,
    direct: bool = False,
    exclude: npt.NDArray[Any] | None = None,
    ignore: Sequence[npt.NDArray[Any]] | None = None,
    ignore_codes: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None,
) -> tuple[FloatArray, IntArray]:
    """The k best gallery rows of each query, by comparing all of them.

    Equal scores: the lower id first if the gallery is Embeddings, else the lower row; bit-identical
    gallery rows always have equal scores. If fewer than k rows count, the rest is −inf and −1.

    Args:
        query: (Q, D) array or Embeddings.
        gallery: The same, a memory-mapped array, or the path of a .npz, .npy or .parquet file, read
            in blocks (once more to find doubled rows).
        k: Results for each query.
        metric: 'cosine', 'dot' or 'l2' (the score is minus the squared distance); None means the
            space's own, and cosine for plain arrays.
        direct: Compare two sets of Embeddings although nothing connects their spaces.
        exclude: (Q,) the query's own gallery row, −1 where it has none.
        ignore: For each query the gallery rows that do not count (junk).
        ignore_codes: ((Q,), (G,)) integers; gallery rows with the query's code do not count (same
            camera); a negative query code ignores nothing.

    Returns:
        (scores, indices), both (Q, min(k, G)), best first; larger scores are better.

    Raises:
        EvaluationError: `k` or a row that is named is out of range.
        SpaceMismatch: Nothing connects the spaces of query and gallery.
        VectorError: The dimensions differ, or a vector is not usable.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> gallery = np.eye(3, dtype=np.float32)
        >>> scores, rows = ms.evaluation.search_exact(gallery[:1], gallery, k=1)
        >>> scores.tolist(), rows.tolist()
        ([[1.0]], [[0]])
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise EvaluationError(f"expected k to be a whole number of at least 1, got {k!r}")
    blocks = open_blocks(gallery)
    vectors = query.vectors if isinstance(query, Embeddings) else as_matrix(query, what="query")
    if vectors.shape[1] != blocks.dim:
        raise VectorError(f"query has {vectors.shape[1]} dimensions, gallery {blocks.dim}")
    if isinstance(query, Embeddings) and blocks.space is not None and not direct:
        check_comparable(query.space, blocks.space, override="direct")
    if metric is None:
        space = query.space if isinstance(query, Embeddings) else blocks.space
        metric = space.metric if space else "cosine"
    check_metric(metric)
    if blocks.rows >= 2**32:
        raise EvaluationError(f"a gallery of {blocks.rows} rows; up to 2^32 - 1 can be searched")
    ignored = ignored_rows(
        exclude=exclude,
        ignore=ignore,
        ignore_codes=ignore_codes,
        n_queries=len(vectors),
        n_gallery=blocks.rows,
    )
    order = id_order(gallery.ids if isinstance(gallery, Embeddings) else None)
    multiplications = float(len(vectors)) * blocks.rows * blocks.dim
    with Threads(multiplications=multiplications) as threads:
        search = _Search(blocks, k=k, metric=metric, order=order, ignored=ignored, threads=threads)
        return search.run(vectors)


def ignored_rows(
    *,
    exclude: npt.NDArray[Any] | None,
    ignore: Sequence[npt.NDArray[Any]] | None,
    ignore_codes: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None,
    n_queries: int,
    n_gallery: int,
) -> Ignored:
    """The three ways to ignore rows, checked."""
    own = lists = codes = None
    if exclude is not None:
        own = _whole(exclude, length=n_queries, what="exclude")
        if ((own < NO_ROW) | (own >= n_gallery)).any():
            raise EvaluationError(f"exclude: expected gallery rows 0 to {n_gallery - 1}, or -1")
    if ignore is not None:
        if len(ignore) != n_queries:
            raise EvaluationError(f"ignore has {len(ignore)} lists for {n_queries} queries")
        lists = RowLists.of(ignore, n_gallery=n_gallery, what="ignore lists")
    if ignore_codes is not None:
        codes = (
            _whole(ignore_codes[0], length=n_queries, what="query codes"),
            _whole(ignore_codes[1], length=n_gallery, what="gallery codes"),
        )
    return Ignored(own=own, lists=lists, codes=codes)


def _whole(values: npt.NDArray[Any], *, length: int, what: str) -> IntArray:
    array = np.asarray(values)
    if array.shape != (length,) or array.dtype.kind not in "iu":
        raise EvaluationError(
            f"{what}: expected ({length},) integers, got {array.dtype}{array.shape}"
        )
    return array.astype(np.int64)


class _Search:
    """One search: what stays the same while queries and gallery pass by in blocks."""

    def __init__(
        self,
        blocks: Blocks,
        *,
        k: int,
        metric: Metric,
        order: IntArray | None,
        ignored: Ignored,
        threads: Threads,
    ) -> None:
        self.blocks, self.metric, self.ignored, self.threads = blocks, metric, ignored, threads
        self.k = min(int(k), blocks.rows)
        self.order = order
        self.places = None if order is None else inverse(order, length=len(order))
        self.keys = np.zeros(blocks.rows, dtype=np.uint64)  # filled by the first pass
        self.buffers = Buffers()

    def run(self, vectors: npt.NDArray[Any]) -> tuple[FloatArray, IntArray]:
        shape = (len(vectors), self.k)
        scores, places = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.int64)
        centre = middle(vectors, metric=self.metric)
        queries = prepare(vectors, metric=self.metric, what="query", side="query", centre=centre)
        at_once = max(QUERY_BLOCK, STATE_BYTES // (8 * Best.capacity(self.k)))
        for start in range(0, len(vectors), at_once):
            parts = [
                _Part(queries[first : min(first + QUERY_BLOCK, start + at_once)], first, self.k)
                for first in range(start, min(start + at_once, len(vectors)), QUERY_BLOCK)
            ]
            self._pass(parts, centre=centre)
            for part in parts:
                here = slice(part.first, part.first + len(part.queries))
                scores[here], places[here] = part.best.sorted()
        indices = np.where(scores == -np.inf, NO_ROW, self._row(places))
        self._order_doubles(scores, indices)
        if self.metric == "l2":
            lengths = np.einsum("qd,qd->q", queries[:, :-1], queries[:, :-1])
            scores = np.minimum(2 * scores - lengths[:, None], np.float32(0))
        return scores, indices

    def _pass(self, parts: list[_Part], *, centre: FloatArray | None) -> None:
        """Offer the whole gallery to these queries; each thread takes the next block of it."""
        width = GALLERY_BLOCK * (8 if len(parts[0].queries) <= QUERY_BLOCK // 8 else 1)
        work = partial(self._offer, parts, centre)
        starts = range(0, self.blocks.rows, width)
        for _ in self.threads.map(work, zip(starts, self.blocks.read(width), strict=True)):
            pass

    def _offer(
        self,
        parts: list[_Part],
        centre: FloatArray | None,
        block: tuple[int, npt.NDArray[Any]],
    ) -> None:
        """Offer one block to all queries."""
        first_row, raw = block
        rows = self._prepared(raw, centre, first_row, parts)
        for part in parts:
            size = len(part.queries) * len(rows)
            scores = self.buffers.take("scores", size).reshape(-1, len(rows))
            np.matmul(part.queries, rows.T, out=scores)
            self._select(part, scores, first_row)

    def _prepared(
        self,
        raw: npt.NDArray[Any],
        centre: FloatArray | None,
        first_row: int,
        parts: list[_Part],
    ) -> FloatArray:
        if parts[0].first == 0:  # the first pass over the gallery
            self.keys[first_row : first_row + len(raw)] = quick_keys(raw)
        width = prepared_dim(self.blocks.dim, metric=self.metric)
        return prepare(
            raw,
            metric=self.metric,
            what="gallery",
            side="gallery",
            centre=centre,
            first_row=first_row,
            out=self.buffers.take("rows", len(raw) * width).reshape(-1, width),
        )

    def _select(self, part: _Part, scores: FloatArray, first_row: int) -> None:
        """Offer a block of scores (q, w) to the best so far."""
        column, width = 0, scores.shape[1]
        mask = self.buffers.take("mask", len(scores) * (width + 8), dtype=np.bool_)
        while column < width:
            until = column + part.best.step(width - column)
            line, nth, reached = reaching(scores[:, column:until], part.best.floor, mask=mask)
            rows = first_row + column + nth
            if self.ignored:
                counts = ~self.ignored.has(part.first + line, rows)
                line, rows, reached = line[counts], rows[counts], reached[counts]
            part.best.add(line, pack(reached, self._place(rows)), rows=until - column)
            column = until

    def _order_doubles(self, scores: FloatArray, indices: IntArray) -> None:
        """Give doubled rows one score, and the k places that are left to them by their ids."""
        doubles = find_doubles(self.keys, lambda: self.blocks.read(GALLERY_BLOCK))
        if len(doubles) == 0:
            return
        groups = Groups(doubles)
        touched = among(indices.reshape(-1), groups.rows).reshape(indices.shape).any(axis=1)
        queries = np.flatnonzero(touched)
        for start in range(0, len(queries), QUERY_BLOCK):
            part = queries[start : start + QUERY_BLOCK]
            line, column = np.nonzero(indices[part] != NO_ROW)
            rows, values = indices[part][line, column], scores[part][line, column]
            line, rows, values = groups.unfold(line, rows, values)
            if self.ignored:
                counts = ~self.ignored.has(part[line], rows)
                line, rows, values = line[counts], rows[counts], values[counts]
            best = Best(len(part), self.k)
            best.add(line, pack(values, self._place(rows)), rows=0)
            best_scores, places = best.sorted()
            scores[part] = best_scores
            indices[part] = np.where(best_scores == -np.inf, NO_ROW, self._row(places))

    def _place(self, rows: IntArray) -> IntArray:
        return rows if self.places is None else self.places[rows]

    def _row(self, places: IntArray) -> IntArray:
        return places if self.order is None else self.order[places]


class _Part:
    """Queries that are multiplied together, and their best rows so far."""

    def __init__(self, queries: FloatArray, first: int, k: int) -> None:
        self.queries, self.first = queries, first
        self.best = Best(len(queries), k)
