"""What a search in the mirror finds: candidates, each with its one true score."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from midspan.gallery.index.exact import Best, scan
from midspan.gallery.index.family import Family
from midspan.gallery.index.shelf import HOLE, Shelf
from midspan.gallery.scores import pair_scores
from midspan.spaces import FloatArray, IntArray, Metric

MOST = 4096  # candidates that are asked for again when dead rows took the place of living ones


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The candidates of one query by falling score: the k best, all that equal the k-th, more."""

    items: IntArray
    spaces: IntArray
    scores: FloatArray


def count_for(k: int) -> int:
    """Beyond k: 8-bit codes rank nearly as the vectors do (12 for 10 gave all of the recall that
    36 gave, on 100,000 vectors), rows that were removed, and equal scores."""
    return k + k // 2 + 8


def by_lists(family: Family, queries: FloatArray, *, k: int, metric: Metric) -> list[Found] | None:
    """A search that nothing is left out of: no filter, the whole family. None: it found too little.

    The way that nearly all searches go, so it does as little as it can.
    """
    assert family.ivf is not None
    enough, count = min(k, len(family.shelf)), count_for(k)
    while True:
        _, rows = family.ivf.search(queries, count, probes=family.ivf.probes, allowed=None)
        fresh = fresh_rows(family, queries, k=k, metric=metric)
        found = [
            _score_rows(
                family.shelf,
                rows[query] if fresh is None else np.union1d(rows[query], fresh[query]),
                queries[query],
                metric=metric,
            )
            for query in range(len(queries))
        ]
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


def _score_rows(shelf: Shelf, rows: IntArray, query: FloatArray, *, metric: Metric) -> Found:
    if not len(rows) or rows.item(-1) < 0 or rows.item(0) < 0:  # there are no more: −1
        rows = rows[rows >= 0]
    items = shelf.items[rows]
    if shelf.holes and (items == HOLE).any():
        rows, items = rows[items != HOLE], items[items != HOLE]
    scores = pair_scores(query, shelf.take(rows), metric=metric)
    order = np.negative(scores).argsort(kind="stable")
    spaces = shelf.spaces[rows[order]].astype(np.int64)
    return Found(items[order], spaces, scores[order])


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
