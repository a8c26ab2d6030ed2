"""The live vectors of spaces that can be compared with each other: one shelf, one search.

An item has one row whatever the space of its vector. In a direct upgrade the new vector takes the
place of the old one, so a mixed gallery costs what a plain one costs. Beside the shelf stands an
IVF index once it is large; rows that were written since are `fresh` and are compared one by one.
"""

from __future__ import annotations

import numpy as np

from midspan.gallery.index.ivf import Ivf
from midspan.gallery.index.layout import Layout
from midspan.spaces import FloatArray, IntArray, Space

FRESH = 0.25  # share of the rows beyond which an index is of no use any more


class Fresh:
    """Rows that the IVF index does not know yet, with a copy of their vectors side by side."""

    def __init__(self, dim: int) -> None:
        self.count = 0
        self._rows = np.empty(256, dtype=np.int64)
        self._vectors = np.empty((256, dim), dtype=np.float32)

    @property
    def rows(self) -> IntArray:
        return self._rows[: self.count]

    @property
    def vectors(self) -> FloatArray:
        return self._vectors[: self.count]

    def add(self, rows: IntArray, vectors: FloatArray) -> None:
        end = self.count + len(rows)
        if end > len(self._rows):
            capacity = max(end, 2 * len(self._rows))
            old_rows, old_vectors = self.rows, self.vectors
            self._rows = np.empty(capacity, dtype=np.int64)
            self._vectors = np.empty((capacity, old_vectors.shape[1]), dtype=np.float32)
            self._rows[: self.count], self._vectors[: self.count] = old_rows, old_vectors
        self._rows[self.count : end], self._vectors[self.count : end] = rows, vectors
        self.count = end

    def forget(self, count: int) -> None:
        """The first `count`, which the index has learnt."""
        rows, vectors = self.rows[count:].copy(), self.vectors[count:].copy()
        self.count = 0
        self._rows = np.empty(max(256, len(rows)), dtype=np.int64)
        self._vectors = np.empty((max(256, len(rows)), vectors.shape[1]), dtype=np.float32)
        self.add(rows, vectors)


class Family:
    def __init__(self, space: Space, layout: Layout) -> None:
        self.dim, self.metric, self.layout = space.dim, space.metric, layout
        self.members: dict[int, Space] = {}
        self.shelf = layout.shelf(space.dim)
        self.fresh = Fresh(space.dim)
        self.ivf: Ivf | None = None
        self.behind: list[IntArray] = []  # rows of which the index still lists a former vector
        self.missed: list[IntArray] | None = None  # rows changed since a new index was begun
        self.unlearnt = 0  # rows written since the centres were learnt
        self.uncalibrated = 0  # rows written since the number of lists was chosen

    def takes(self, space: Space) -> bool:
        return any(space.comparable_with(member) for member in self.members.values())

    def add(self, items: IntArray, vectors: FloatArray, *, space: int) -> IntArray:
        rows = self.shelf.add(items, vectors, space=space)
        self._note(rows, vectors)
        return rows

    def write(self, rows: IntArray, items: IntArray, vectors: FloatArray, *, space: int) -> None:
        self.shelf.write(rows, items, vectors, space=space)
        self._note(rows, vectors)
        if self.ivf is not None and len(rows):  # none: searches need not look for doubles
            self.behind.append(rows)

    def remove(self, rows: IntArray) -> None:
        self.shelf.remove(rows)
        if self.ivf is not None and len(rows):  # none: searches need not look for doubles
            self.behind.append(rows)
        if self.missed is not None:
            self.missed.append(rows)

    def unlisted(self, ivf: Ivf) -> IntArray:
        """Rows whose present vector this index, the one in use or one being made, does not list."""
        if ivf is self.ivf:
            return self.fresh.rows
        return np.concatenate([*(self.missed or ()), np.empty(0, dtype=np.int64)])

    def drop_index(self) -> None:
        """After so many changes that comparing all is better, until a new one is made."""
        self.put_index(None)
        self.missed = None  # one that is being made is thrown away

    def put_index(self, ivf: Ivf | None) -> None:
        self.ivf = ivf
        self.fresh = Fresh(self.dim)
        self.behind = []

    def _note(self, rows: IntArray, vectors: FloatArray) -> None:
        self.unlearnt += len(rows)
        self.uncalibrated += len(rows)
        if self.ivf is not None and self.fresh.count + len(rows) > FRESH * len(self.shelf):
            self.drop_index()
        if self.ivf is not None:
            self.fresh.add(rows, vectors)
        if self.missed is not None:
            self.missed.append(rows)
