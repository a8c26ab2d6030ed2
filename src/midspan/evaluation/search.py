"""Exact search: the k best gallery rows of each query, in bounded memory.

The product of a query block and a gallery block is made by BLAS. From it only the scores that
reach the k-th best so far are looked at; they are rare, so the search costs little more than the
multiplication. Equal scores stand in the order of the ids, or of the rows if there are no ids.
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
from midspan.evaluation.threads import Threads
from midspan.evaluation.ties import Groups, find_doubles, id_order, inverse, quick_keys
from midspan.evaluation.topk import Best, pack, reaching
from midspan.spaces import Embeddings, FloatArray, IntArray, Metric, check_comparable

GALLERY_BLOCK = 8192  # rows; NumPy compares rows of more than 4096 numbers at full speed
QUERY_BLOCK = 512  # 512 × 8192 scores are 16 MiB, which the last cache can hold
LINES = 128  # queries whose scores a thread looks through at a time
PIECE = 2048  # rows of a gallery block that a thread prepares
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
    """(scores, indices), both (Q, min(k, G)), best first; larger scores are better.

    query: (Q, D) array or Embeddings. gallery: the same, a memory-mapped array, or the path of a
        .npz, .npy or .parquet file, which is read in blocks (once more to find doubled rows).
    metric: 'cosine', 'dot' or 'l2' (the score is minus the squared distance); None means the
        space's own, and cosine for plain arrays.
    direct: compare two sets of Embeddings although nothing connects their spaces.
    exclude: (Q,) the query's own gallery row, −1 where it has none.
    ignore: for each query the gallery rows that do not count (junk).
    ignore_codes: ((Q,), (G,)) integers; gallery rows with the query's code do not count (same
        camera); a negative query code ignores nothing.

    Equal scores: the lower id first if the gallery is Embeddings, else the lower row; bit-identical
    gallery rows always have equal scores. If fewer than k rows count, the rest is −inf and −1.
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
    with Threads() as threads:
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

    def run(self, vectors: npt.NDArray[Any]) -> tuple[FloatArray, IntArray]:
        shape = (len(vectors), self.k)
        scores, places = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.int64)
        centre = middle(vectors, metric=self.metric)
        queries = prepare(vectors, metric=self.metric, what="query", side="query", centre=centre)
        at_once = max(QUERY_BLOCK, STATE_BYTES // (8 * Best.capacity(self.k)))
        for start in range(0, len(vectors), at_once):
            part = queries[start : start + at_once]
            best = Best(len(part), self.k)
            self._pass(best, part, centre=centre, first_query=start)
            scores[start : start + len(part)], places[start : start + len(part)] = best.sorted()
        indices = np.where(scores == -np.inf, NO_ROW, self._row(places))
        self._order_doubles(scores, indices)
        if self.metric == "l2":
            lengths = np.einsum("qd,qd->q", queries[:, :-1], queries[:, :-1])
            scores = np.minimum(2 * scores - lengths[:, None], np.float32(0))
        return scores, indices

    def _pass(
        self, best: Best, queries: FloatArray, *, centre: FloatArray | None, first_query: int
    ) -> None:
        """Offer the whole gallery to these queries."""
        width = GALLERY_BLOCK * (8 if len(queries) <= QUERY_BLOCK // 8 else 1)
        room = np.empty(min(len(queries), QUERY_BLOCK) * width, dtype=np.float32)
        first_row = 0
        for raw in self.blocks.read(width):
            block = self._prepared(
                raw, centre=centre, first_row=first_row, first_pass=first_query == 0
            )
            for start in range(0, len(queries), QUERY_BLOCK):
                part = queries[start : start + QUERY_BLOCK]
                scores = room[: len(part) * len(block)].reshape(len(part), len(block))
                np.matmul(part, block.T, out=scores)
                work = partial(self._select, best, scores, start, first_query, first_row)
                step = max(16, min(LINES, -(-len(part) // self.threads.size)))
                self.threads.spread(work, len(part), step=step)
            first_row += len(block)

    def _prepared(
        self,
        raw: npt.NDArray[Any],
        *,
        centre: FloatArray | None,
        first_row: int,
        first_pass: bool,
    ) -> FloatArray:
        """The prepared gallery block, made by all threads; the block itself if that is possible."""
        width = prepared_dim(self.blocks.dim, metric=self.metric)
        out = np.empty((len(raw), width), dtype=np.float32)

        def work(start: int) -> FloatArray:
            part = raw[start : start + PIECE]
            if first_pass:
                self.keys[first_row + start : first_row + start + len(part)] = quick_keys(part)
            return prepare(
                part,
                metric=self.metric,
                what="gallery",
                side="gallery",
                centre=centre,
                first_row=first_row + start,
                out=out[start : start + PIECE],
            )

        starts = range(0, len(raw), PIECE)
        pieces = list(self.threads.map(work, starts))
        as_they_are = [not np.may_share_memory(piece, out) for piece in pieces]
        if all(as_they_are) and raw.dtype == np.float32 and raw.flags.c_contiguous:
            return raw
        for start, piece, as_it_is in zip(starts, pieces, as_they_are, strict=True):
            if as_it_is:
                out[start : start + PIECE] = piece
        return out

    def _select(  # noqa: PLR0917 (bound with partial)
        self,
        best: Best,
        block: FloatArray,
        start: int,
        first_query: int,
        first_row: int,
        lower: int,
        upper: int,
    ) -> None:
        """Offer the lines lower … upper of a block of scores to the best so far.

        The floor is raised whenever the number of rows seen has doubled, so about k rows join
        between two times: k · log2(G / k) in all.
        """
        scores = block[lower:upper]
        lower, upper = start + lower, start + upper
        column, width = 0, scores.shape[1]
        while column < width:
            mark = 2 * self.k
            while mark <= first_row + column:
                mark *= 2
            until = min(width, mark - first_row)
            line, nth, reached = reaching(scores[:, column:until], best.floor[lower:upper])
            rows = first_row + column + nth
            if self.ignored:
                counts = ~self.ignored.has(first_query + lower + line, rows)
                line, rows, reached = line[counts], rows[counts], reached[counts]
            best.add(lower, upper, line, pack(reached, self._place(rows)))
            if first_row + until == mark:
                best.settle(lower, upper)
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
            best.add(0, len(part), line, pack(values, self._place(rows)))
            best_scores, places = best.sorted()
            scores[part] = best_scores
            indices[part] = np.where(best_scores == -np.inf, NO_ROW, self._row(places))

    def _place(self, rows: IntArray) -> IntArray:
        return rows if self.places is None else self.places[rows]

    def _row(self, places: IntArray) -> IntArray:
        return places if self.order is None else self.order[places]
