"""The best rows of each query by one multiplication after the other, in bounded memory.

From a block of scores only those that reach the k-th best so far are looked at; they are rare.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from midspan.gallery.index.shelf import BoolArray
from midspan.spaces import FloatArray, IntArray, Metric

SCORES = 2**20  # scores in memory at once: 4 MiB stay in the cache
NO_ROW = -1

Part = tuple[IntArray, FloatArray, BoolArray | None]  # rows (n,), vectors (n, D), which count


class Best:
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
            queries, found, values = self._found[0]
            place = np.arange(len(queries)) - np.searchsorted(queries, queries)
            scores[queries, place], rows[queries, place] = values, found
        return scores, rows


def scan(best: Best, queries: FloatArray, parts: Iterable[Part], *, metric: Metric) -> None:
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
