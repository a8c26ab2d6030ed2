"""Which gallery rows a query looks for, and which do not count for it.

Rows are positions in the gallery. Relevant rows come by label or as lists; ignored rows (the
query's own image, junk, the same camera) are taken out of the ranking before ranks are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from midspan.errors import EvaluationError
from midspan.evaluation.scores import BoolArray
from midspan.spaces import FloatArray, IntArray

NO_ROW = -1


class Relevance(Protocol):
    @property
    def counts(self) -> IntArray:
        """(Q,) relevant rows of each query, ignored ones included."""
        ...

    def padded(self, queries: IntArray) -> IntArray:
        """(q, R) the rows relevant to these queries, filled up with NO_ROW."""
        ...


@dataclass(frozen=True, slots=True)
class RowLists:
    """A list of gallery rows for each query, end to end: rows[starts[q] : starts[q + 1]]."""

    starts: IntArray  # (Q + 1,)
    rows: IntArray  # sorted and unique inside each query
    keys: IntArray  # query · G + row, ascending
    n_gallery: int

    @classmethod
    def of(cls, lists: Sequence[Any], *, n_gallery: int, what: str = "lists") -> RowLists:
        arrays = [np.unique(np.asarray(rows, dtype=np.int64)) for rows in lists]
        counts = np.array([len(rows) for rows in arrays], dtype=np.int64)
        rows = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
        wrong = (rows < 0) | (rows >= n_gallery)
        if wrong.any():
            raise EvaluationError(
                f"{what} name gallery row {int(rows[wrong][0])}; the gallery has rows 0 to "
                f"{n_gallery - 1}"
            )
        return cls(
            starts=np.concatenate([[0], np.cumsum(counts)]),
            rows=rows,
            keys=np.repeat(np.arange(len(arrays)), counts) * n_gallery + rows,
            n_gallery=n_gallery,
        )

    @property
    def counts(self) -> IntArray:
        return np.diff(self.starts)

    def padded(self, queries: IntArray) -> IntArray:
        return _padded(self.rows, self.starts[queries], self.counts[queries])

    def has(self, queries: IntArray, rows: IntArray) -> BoolArray:
        """(n,) whether rows[i] is in the list of queries[i]."""
        return among(queries * self.n_gallery + rows, self.keys)


@dataclass(frozen=True, slots=True)
class SameLabel:
    """Rows that carry the query's label."""

    codes: IntArray  # (Q,) labels as numbers
    starts: IntArray  # (C + 1,)
    rows: IntArray  # (G,) gallery rows by label: rows[starts[c] : starts[c + 1]]

    @classmethod
    def of(cls, query_codes: IntArray, gallery_codes: IntArray) -> SameLabel:
        """From codes as `label_codes` makes them."""
        n_codes = int(max(query_codes.max(initial=-1), gallery_codes.max(initial=-1))) + 1
        counts = np.bincount(gallery_codes, minlength=n_codes)
        return cls(
            codes=query_codes,
            starts=np.concatenate([[0], np.cumsum(counts)]),
            rows=np.argsort(gallery_codes, kind="stable"),
        )

    @property
    def counts(self) -> IntArray:
        return np.diff(self.starts)[self.codes]

    def padded(self, queries: IntArray) -> IntArray:
        return _padded(self.rows, self.starts[self.codes[queries]], self.counts[queries])


def among(values: npt.NDArray[Any], known: npt.NDArray[Any]) -> BoolArray:
    """(n,) whether each value stands in `known`, which is sorted."""
    if len(known) == 0:
        return np.zeros(len(values), dtype=bool)
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    present: BoolArray = known[place] == values
    return present


def _padded(rows: IntArray, starts: IntArray, counts: IntArray) -> IntArray:
    width = int(counts.max(initial=0))
    offset = np.arange(width)
    inside = offset < counts[:, None]  # (q, R)
    place = np.where(inside, starts[:, None] + offset, 0)
    return np.where(inside, rows[place] if len(rows) else NO_ROW, NO_ROW)


@dataclass(frozen=True, slots=True)
class Ignored:
    """Gallery rows that do not count for a query; each part is optional.

    own: (Q,) the row of the query itself, NO_ROW where it has none.
    lists: further rows of each query.
    codes: ((Q,), (G,)) rows that share the query's code (camera, track); negative codes share
        nothing.
    """

    own: IntArray | None = None
    lists: RowLists | None = None
    codes: tuple[IntArray, IntArray] | None = None

    def __bool__(self) -> bool:
        return any(part is not None for part in (self.own, self.lists, self.codes))

    def has(self, queries: IntArray, rows: IntArray) -> BoolArray:
        """(n,) whether rows[i] is ignored for queries[i]."""
        ignored: BoolArray = np.zeros(len(rows), dtype=bool)
        if self.own is not None:
            ignored |= self.own[queries] == rows
        if self.lists is not None:
            ignored |= self.lists.has(queries, rows)
        if self.codes is not None:
            code = self.codes[0][queries]
            ignored |= (code == self.codes[1][rows]) & (code >= 0)
        return ignored

    def blank(self, scores: FloatArray, queries: IntArray, columns: IntArray | None) -> None:
        """Set ignored scores (q, G) to −inf; columns[row] says where a gallery row stands."""
        line, rows = self._listed(queries)
        if len(rows):
            scores[line, rows if columns is None else columns[rows]] = -np.inf
        if self.codes is not None:
            query_codes, gallery_codes = self.codes
            if columns is not None:
                placed = np.full(scores.shape[1], NO_ROW, dtype=np.int64)
                placed[columns] = gallery_codes
                gallery_codes = placed
            for i, code in enumerate(query_codes[queries].tolist()):
                if code >= 0:
                    np.copyto(scores[i], -np.inf, where=gallery_codes == code)

    def _listed(self, queries: IntArray) -> tuple[IntArray, IntArray]:
        lines, rows = [], []
        if self.own is not None:
            own = self.own[queries]
            lines.append(np.flatnonzero(own != NO_ROW))
            rows.append(own[own != NO_ROW])
        if self.lists is not None:
            padded = self.lists.padded(queries)
            line, place = np.nonzero(padded != NO_ROW)
            lines.append(line)
            rows.append(padded[line, place])
        if not lines:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate(lines), np.concatenate(rows)


def label_codes(query: npt.NDArray[Any], gallery: npt.NDArray[Any]) -> tuple[IntArray, IntArray]:
    """The labels of both sides as numbers 0 … C−1; equal labels, equal numbers."""
    if query.ndim != 1 or gallery.ndim != 1:
        raise EvaluationError(f"expected labels (N,), got {query.shape} and {gallery.shape}")
    kinds = {("n" if labels.dtype.kind in "iufb" else "s") for labels in (query, gallery)}
    if len(kinds) > 1 and len(query) and len(gallery):
        raise EvaluationError(
            f"query labels are {query.dtype} and gallery labels {gallery.dtype}; "
            "numbers and texts are never equal: convert one of them"
        )
    for side, labels in (("query", query), ("gallery", gallery)):
        if labels.dtype.kind == "f" and np.isnan(labels).any():
            missing = int(np.isnan(labels).sum())
            raise EvaluationError(
                f"{missing} {side} labels are NaN (missing); drop those rows first"
            )
    both = np.concatenate([query, gallery])
    _, codes = np.unique(both, return_inverse=True)
    codes = codes.astype(np.int64)
    return codes[: len(query)], codes[len(query) :]
