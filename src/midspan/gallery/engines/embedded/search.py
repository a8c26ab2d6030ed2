"""Search over views: candidates from lists and scans, then one true score for each.

Small galleries, narrow filters and `exact` compare every vector. The answer is then complete to
the last bit: vectors are fetched until none that was left out could reach the k-th true score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from midspan.gallery.engines.base import Candidates, pair_scores
from midspan.gallery.engines.embedded.ivf import SPARE, BoolArray
from midspan.gallery.engines.embedded.segment import MOSTLY, NOWHERE, View, pack
from midspan.spaces import FloatArray, IntArray, Metric

EXTRA = 16  # vectors beyond k that comparing everything fetches at first
GATHER = 20_000  # vectors that a filter leaves, up to which they are taken out and compared
TOGETHER = 1536  # candidates, of one query or several, that are scored at once
MOST = 4096  # candidates that are asked for when those that do not count took the place of others
EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True)
class FilteredView:
    """A view, and which of its slots pass the filter."""

    view: View
    passing: IntArray | None  # sorted slots that count and pass; None: no filter

    @property
    def count(self) -> int:
        return self.view.live if self.passing is None else len(self.passing)


@dataclass(frozen=True, slots=True)
class _Block:
    """Candidates in one array of vectors: of a snapshot or of a tail."""

    number: int
    rows: IntArray  # (n,)
    vectors: FloatArray  # (n, D)
    places: IntArray  # (Q, C) into both; NOWHERE: none


def search(
    scopes: Sequence[FilteredView], queries: FloatArray, *, k: int, metric: Metric, exact: bool
) -> list[Candidates]:
    """`queries` are prepared (Q, D)."""
    scopes = [scope for scope in scopes if scope.count]
    total = sum(scope.count for scope in scopes)
    if not exact:
        candidates = _by_lists(scopes, queries, k=k, metric=metric, total=total)
        if candidates is not None:
            return candidates
    return _by_scan(scopes, queries, k=k, metric=metric, total=total)


# ---- by the lists


def _by_lists(
    scopes: Sequence[FilteredView], queries: FloatArray, *, k: int, metric: Metric, total: int
) -> list[Candidates] | None:
    """None: there are none, or they found too little, which only comparing everything can mend."""
    if not any(scope.view.segment.snapshot is not None for scope in scopes):
        return None
    factor = 1
    while True:
        blocks = [
            block
            for scope in scopes
            for block in _blocks(scope, queries, k=k, metric=metric, factor=factor)
        ]
        candidates = _score(blocks, queries, k=k, metric=metric, total=total)
        if all(len(one.rows) >= min(k, total) for one in candidates):
            return candidates
        if factor * k >= min(MOST, total):
            return None
        factor *= 8


def _blocks(
    scope: FilteredView, queries: FloatArray, *, k: int, metric: Metric, factor: int
) -> list[_Block]:
    view = scope.view
    segment, snapshot = view.segment, view.segment.snapshot
    blocks = []
    if scope.passing is None:
        base, tail = view.live_base, view.live_tail
    else:
        base = int(np.searchsorted(scope.passing, segment.base))
        tail = len(scope.passing) - base
    if snapshot is not None and base:
        places = _base_places(scope, queries, k=k, metric=metric, factor=factor, count=base)
        blocks.append(_Block(segment.number, snapshot.rows, snapshot.vectors, places))
    if tail:
        places = _tail_places(scope, queries, k=k, metric=metric, factor=factor, count=tail)
        blocks.append(_Block(segment.number, segment.tail_rows, segment.tail_vectors, places))
    return blocks


def _base_places(
    scope: FilteredView, queries: FloatArray, *, k: int, metric: Metric, factor: int, count: int
) -> IntArray:
    """(Q, C) slots of a snapshot of which `count` count."""
    view, snapshot = scope.view, scope.view.segment.snapshot
    assert snapshot is not None
    base, record = view.segment.base, snapshot.record
    if scope.passing is not None:
        passing = scope.passing[:count]
        if count <= GATHER:
            return _gathered(passing, snapshot.vectors[passing], queries, k=k, metric=metric)
        counts = np.zeros(base, dtype=bool)
        counts[passing] = True
        limit = snapshot.ivf.candidates(factor * k, oversampling=record.oversampling)
        probes = math.ceil(record.probes * base / count)
        _, places = snapshot.ivf.search(queries, limit, probes=probes, allowed=pack(counts))
        return _only(places, base, None)
    reduced = view.reduction.now
    if reduced is not None and reduced.few is not None:
        slots, vectors = reduced.few
        best = factor * k + len(slots) - count
        return _only(_gathered(slots, vectors, queries, k=best, metric=metric), base, view.excluded)
    lists, listed, allowed = snapshot.ivf, base, None
    if reduced is not None and reduced.lists is not None:
        lists, listed = reduced.lists, reduced.count
    share = count / listed
    if share <= MOSTLY:
        allowed = view.bits()[0]
    limit = lists.candidates(factor * k, oversampling=record.oversampling)
    if share < 1 and allowed is None:
        limit += k
    # What replaces a superseded vector is about as near, and is found in its own space, which is
    # searched too: here or by the other part of the same search.
    _, places = lists.search(queries, limit, probes=record.probes, allowed=allowed)
    return _only(places, base, view.excluded)


def _tail_places(
    scope: FilteredView, queries: FloatArray, *, k: int, metric: Metric, factor: int, count: int
) -> IntArray:
    """(Q, C) places in a tail of which `count` count."""
    view, segment = scope.view, scope.view.segment
    tail, start, size = segment.tail, segment.base, len(segment.tail_rows)
    excluded = None if view.excluded is None else view.excluded[start:]
    if scope.passing is not None:
        places = scope.passing[-count:] - start
        return _gathered(places, segment.tail_vectors[places], queries, k=k, metric=metric)
    parts = []
    listed = 0
    if tail.lists is not None and segment.snapshot is not None:
        record = segment.snapshot.record
        with tail.lock.shared():
            lists, listed = tail.lists, min(tail.listed, size)
            limit = lists.candidates(factor * k, oversampling=record.oversampling) + k
            allowed = view.bits()[1] if count <= MOSTLY * size else None
            _, listed_places = lists.search(queries, limit, probes=record.probes, allowed=allowed)
        parts.append(_only(listed_places, listed, excluded))
    if listed < size:
        counts = None if excluded is None else ~excluded[listed:]
        best = TopK(len(queries), min(_beyond(factor * k), size - listed))
        part = np.arange(listed, size), segment.tail_vectors[listed:], counts
        scan(best, queries, [part], metric=metric)
        parts.append(best.sorted()[1])
    return np.concatenate(parts, axis=1)


def _only(places: IntArray, size: int, excluded: BoolArray | None) -> IntArray:
    """NOWHERE in place of what does not count, or is not there."""
    wrong = places >= size
    if excluded is not None:
        wrong |= excluded[np.where(wrong, 0, places)]
    if wrong.any():
        places[wrong] = NOWHERE
    return places


def _gathered(
    places: IntArray, vectors: FloatArray, queries: FloatArray, *, k: int, metric: Metric
) -> IntArray:
    best = TopK(len(queries), min(_beyond(k), len(places)))
    scan(best, queries, [(places, vectors, None)], metric=metric)
    return best.sorted()[1]


def _beyond(k: int) -> int:
    """To take where all are compared: beyond k, for rounding and equal scores."""
    return k + k // 2 + SPARE


# ---- true scores


def _score(
    blocks: Sequence[_Block], queries: FloatArray, *, k: int, metric: Metric, total: int
) -> list[Candidates]:
    if not blocks:
        return [_none() for _ in queries]
    candidates: list[Candidates] = []
    wide = sum(block.places.shape[1] for block in blocks)
    step = max(1, TOGETHER // wide)
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        candidates += _score_part(blocks, part, queries[part], k=k, metric=metric, total=total)
    return candidates


def _score_part(
    blocks: Sequence[_Block],
    part: slice,
    queries: FloatArray,
    *,
    k: int,
    metric: Metric,
    total: int,
) -> list[Candidates]:
    scores, rows, spaces = [], [], []
    for block in blocks:
        places = block.places[part]
        missing = places < 0
        some = bool(missing.any())
        if some:
            places = np.where(missing, 0, places)
        own = pair_scores(queries[:, None], block.vectors[places], metric=metric)
        if some:
            own[missing] = -np.inf
        scores.append(own)
        rows.append(block.rows[places])
        spaces.append(np.full(places.shape[1], block.number, dtype=np.int64))
    every = scores[0] if len(blocks) == 1 else np.concatenate(scores, axis=1)
    every_row = rows[0] if len(blocks) == 1 else np.concatenate(rows, axis=1)
    space_of = spaces[0] if len(blocks) == 1 else np.concatenate(spaces)
    order = np.negative(every).argsort(axis=1, kind="stable")
    candidates = []
    for query in range(len(queries)):
        best = order[query]
        own = every[query, best]
        end = _end(own, k)
        best = best[:end]
        candidates.append(
            Candidates(
                rows=every_row[query, best],
                spaces=space_of[best],
                scores=own[:end],
                complete=end >= total,
            )
        )
    return candidates


def _end(scores: FloatArray, k: int) -> int:
    """How many of the sorted scores are the k best and those that equal the last of them."""
    count = len(scores)
    if count == 0 or scores[-1] == -np.inf:
        count = int(np.searchsorted(-scores, np.inf))
    end = min(k, count)
    while 0 < end < count and scores[end] == scores[end - 1]:
        end += 1
    return end


def _none() -> Candidates:
    return Candidates(
        rows=np.empty(0, dtype=np.int64),
        spaces=np.empty(0, dtype=np.int64),
        scores=np.empty(0, dtype=np.float32),
        complete=True,
    )


# ---- by comparing every vector


def _by_scan(
    scopes: Sequence[FilteredView], queries: FloatArray, *, k: int, metric: Metric, total: int
) -> list[Candidates]:
    by_query: dict[int, Candidates] = {}
    fetch, left = k + EXTRA, np.arange(len(queries))
    while len(left):
        blocks, cuts = [], np.full(len(left), -np.inf)
        for scope in scopes:
            for number, rows, vectors, counts in _arrays(scope):
                best = TopK(len(left), min(fetch, len(rows)))
                scan(best, queries[left], _parts(vectors, counts), metric=metric)
                rough, places = best.sorted()
                if fetch < len(rows):
                    cuts = np.maximum(cuts, rough[:, -1])
                blocks.append(_Block(number, rows, vectors, places))
        again = []
        scored = _score(blocks, queries[left], k=k, metric=metric, total=total)
        for query, one, cut in zip(left.tolist(), scored, cuts.tolist(), strict=True):
            if _complete(one, cut, queries[query], k=k, metric=metric):
                by_query[query] = one
            else:
                again.append(query)
        left, fetch = np.array(again, dtype=np.int64), fetch * 4
    return [by_query[query] for query in range(len(queries))]


def _arrays(scope: FilteredView) -> Iterator[tuple[int, IntArray, FloatArray, BoolArray | None]]:
    """(space, rows, vectors, which count) of the snapshot and of the tail; few are gathered."""
    view = scope.view
    segment, snapshot = view.segment, view.segment.snapshot
    base = segment.base
    counts = None if view.excluded is None else ~view.excluded
    if scope.passing is not None:
        counts = np.zeros(segment.size, dtype=bool)
        counts[scope.passing] = True
    arrays = [(0, base, snapshot.rows, snapshot.vectors)] if snapshot is not None else []
    arrays.append((base, segment.size, segment.tail_rows, segment.tail_vectors))
    for start, end, rows, vectors in arrays:
        if start == end:
            continue
        own = None if counts is None else counts[start:end]
        if own is not None and (few := int(np.count_nonzero(own))) <= GATHER:
            if few:
                places = np.flatnonzero(own)
                yield segment.number, rows[places], vectors[places], None
            continue
        yield segment.number, rows, vectors, own


def _parts(vectors: FloatArray, counts: BoolArray | None) -> Iterator[ScanBlock]:
    yield np.arange(len(vectors)), vectors, counts


def _complete(one: Candidates, cut: float, query: FloatArray, *, k: int, metric: Metric) -> bool:
    """No vector that was left out, whose rough score is at most `cut`, can be among the k best."""
    if cut == -np.inf:
        return True  # nothing was left out
    if len(one.rows) < k:
        return False
    last = float(one.scores[k - 1])
    length = float(np.linalg.norm(query))
    worst, scale = last, 1.0
    if metric == "l2":
        worst = (last + length**2) / 2  # in the units of the rough score
        scale = (length + np.sqrt(-last)) ** 2
    elif metric == "dot":
        scale = max(abs(last), abs(cut), length)
    return bool(cut < worst - 4 * EPSILON * np.sqrt(len(query)) * scale)


# ---- the best rows of each query by one multiplication after the other, in bounded memory --------
# From a block of scores only those that reach the k-th best so far are looked at; they are rare.

SCORES = 2**20  # scores in memory at once: 4 MiB stay in the cache
NO_ROW = -1

ScanBlock = tuple[IntArray, FloatArray, BoolArray | None]  # rows (n,), vectors (n, D), which count


class TopK:
    """The best `k` rows of each of Q queries so far."""

    def __init__(self, queries: int, k: int) -> None:
        self.queries, self.k = queries, k
        self._worst = np.full(queries, -np.inf, dtype=np.float32)  # that can still get in
        self._found: list[tuple[IntArray, IntArray, FloatArray]] = []  # query, row, score
        self._count = 0

    def offer(self, scores: FloatArray, rows: IntArray) -> None:
        """(Q, n) scores of the rows (n,)."""
        if scores.shape[1] > self.k and np.isneginf(self._worst).all():
            keep = np.argpartition(scores, -self.k, axis=1)[:, -self.k :]
            queries = np.repeat(np.arange(self.queries), self.k)
            columns = keep.ravel()
        else:
            queries, columns = np.nonzero(scores > self._worst[:, None])
        if len(queries) == 0:
            return
        values = scores[queries, columns]
        self._found.append((queries, rows[columns], values))
        self._count += len(queries)
        if self._count > 4 * self.queries * self.k:
            self._compress()

    def _compress(self) -> None:
        queries, rows, scores = (np.concatenate(part) for part in zip(*self._found, strict=True))
        order = np.lexsort((rows, -scores, queries))
        queries, rows, scores = queries[order], rows[order], scores[order]
        place = np.arange(len(queries)) - np.searchsorted(queries, queries)  # within its query
        keep = (place < self.k) & (scores > -np.inf)
        last = keep & (place == self.k - 1)
        self._worst[queries[last]] = scores[last]
        self._found = [(queries[keep], rows[keep], scores[keep])]
        self._count = int(keep.sum())

    def sorted(self) -> tuple[FloatArray, IntArray]:
        """(Q, k) scores and rows, best first; −inf and −1 where there are no more."""
        scores = np.full((self.queries, self.k), -np.inf, dtype=np.float32)
        rows = np.full((self.queries, self.k), NO_ROW, dtype=np.int64)
        if self._found:
            self._compress()
            queries, best_rows, values = self._found[0]
            place = np.arange(len(queries)) - np.searchsorted(queries, queries)
            scores[queries, place], rows[queries, place] = values, best_rows
        return scores, rows


def scan(best: TopK, queries: FloatArray, parts: Iterable[ScanBlock], *, metric: Metric) -> None:
    """Offer every row of the parts. For l2 the score is q·g − ‖g‖²/2, which ranks alike."""
    step = max(1, SCORES // max(1, len(queries)))
    for rows, vectors, counts in parts:
        for start in range(0, len(vectors), step):
            block = vectors[start : start + step]
            scores = queries @ block.T  # (Q, n)
            if metric == "l2":
                scores -= 0.5 * np.einsum("nd,nd->n", block, block)
            if counts is not None:
                scores[:, ~counts[start : start + step]] = -np.inf
            best.offer(scores, rows[start : start + step])
