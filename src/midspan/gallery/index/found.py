"""What a search in the mirror finds: candidates, each with its one true score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from midspan.gallery.index.exact import Best, scan
from midspan.gallery.index.family import Family
from midspan.gallery.index.shelf import HOLE, Shelf
from midspan.gallery.scores import pair_scores
from midspan.spaces import FloatArray, IntArray, Metric

TOGETHER = 1536  # candidates, of one query or several, that are scored at once
MOST = 4096  # candidates that are asked for again when dead rows took the place of living ones


class Found(NamedTuple):
    """The candidates of one query by falling score: the k best, all that equal the k-th, more."""

    items: IntArray
    spaces: IntArray
    scores: FloatArray


def count_for(k: int) -> int:
    """Rows to take where all are compared: beyond k, for rounding and equal scores."""
    return k + k // 2 + 8


def by_lists(family: Family, queries: FloatArray, *, k: int, metric: Metric) -> list[Found] | None:
    """A search that nothing is left out of: no filter, the whole family. None: it found too little.

    The way that nearly all searches go, so it does as little as it can.
    """
    assert family.ivf is not None
    enough, count = min(k, len(family.shelf)), family.ivf.candidates(k)
    while True:
        _, rows = family.ivf.search(queries, count, probes=family.ivf.probes, allowed=None)
        fresh = fresh_rows(family, queries, k=k, metric=metric)
        if fresh is not None:
            rows = np.concatenate([rows, fresh], axis=1)
        if fresh is not None or family.behind:
            rows = _once(rows)
        found: list[Found] = []
        step = max(1, TOGETHER // rows.shape[1])
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            found += _score_rows(family.shelf, rows[part], queries[part], metric=metric)
        if all(len(one.items) >= enough for one in found):
            return found
        if count >= min(MOST, len(family.shelf)):
            return None
        count = min(8 * count, MOST)


def fresh_rows(family: Family, queries: FloatArray, *, k: int, metric: Metric) -> IntArray | None:
    """(Q, n) the nearest of the rows that the lists do not know yet."""
    if not family.fresh.count:
        return None
    best = Best(len(queries), min(count_for(k), family.fresh.count))
    scan(best, queries, [(family.fresh.rows, family.fresh.vectors, None)], metric=metric)
    return best.sorted()[1]


def _once(rows: IntArray) -> IntArray:
    """(Q, C) with −1 in place of what a query has twice."""
    rows.sort(axis=1)
    rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = -1
    return rows


def _score_rows(
    shelf: Shelf, rows: IntArray, queries: FloatArray, *, metric: Metric
) -> list[Found]:
    """True scores of (Q, C) rows, each query's by falling score; −1 and holes are left out."""
    count, wide = rows.shape
    items = shelf.items[rows]
    dead = None
    if shelf.holes or rows.min() < 0:
        dead = (rows < 0) | (items == HOLE)
        rows = np.where(dead, 0, rows)
    flat = rows.ravel()
    vectors = shelf.take(flat).reshape(count, wide, shelf.dim)
    scores = pair_scores(queries[:, None], vectors, metric=metric)
    if dead is not None:
        scores[dead] = -np.inf
    order = np.negative(scores).argsort(axis=1, kind="stable")
    order += np.arange(0, count * wide, wide)[:, None]
    items, scores = items.ravel()[order], scores.ravel()[order]
    spaces = shelf.spaces[flat[order]].astype(np.int64)
    if dead is None:
        return [Found(items[query], spaces[query], scores[query]) for query in range(count)]
    ends = (wide - dead.sum(axis=1)).tolist()
    return [
        Found(items[query, :end], spaces[query, :end], scores[query, :end])
        for query, end in enumerate(ends)
    ]


def score(
    lists: Sequence[tuple[Shelf, IntArray]],
    query: FloatArray,
    *,
    among: Sequence[int],
    metric: Metric,
) -> Found:
    """The true scores of all candidates, best first."""
    lists = [(shelf, rows) for shelf, rows in lists if len(rows)]
    if not lists:
        return Found(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    items = np.concatenate([shelf.items[rows] for shelf, rows in lists])
    spaces = np.concatenate([shelf.spaces[rows] for shelf, rows in lists]).astype(np.int64)
    scores = np.concatenate(
        [pair_scores(query, shelf.take(rows), metric=metric) for shelf, rows in lists]
    )
    order = np.argsort(-scores, kind="stable")
    wrong = np.ones(len(spaces), dtype=bool)
    for space in among:
        wrong &= spaces != space
    if wrong.any():  # a vector of another space took the row meanwhile
        order = order[~wrong[order]]
    return Found(items[order], spaces[order], scores[order])
