"""What decides between equal scores: ids (rows if there are none), and which rows are doubled.

A BLAS library may give the same two vectors scores that differ in the last bit, depending on
where in a block they stand (seen with OpenBLAS' AVX2 kernels). So gallery rows that are bit for
bit the same are found and all take one score. Their order is then a matter of ids alone, whatever
the block size, the number of threads and the machine. Rows that differ in a bit have scores of
their own: the last digit decides, and the id where it agrees too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.evaluation.relevance import among
from midspan.evaluation.scores import as_float32
from midspan.spaces import FloatArray, IntArray, StrArray

Keys = npt.NDArray[np.uint64]

QUICK = 32  # coordinates that make a quick key


@dataclass(frozen=True, slots=True)
class Doubles:
    """Rows that are bit for bit an earlier row: rows[i], ascending, repeats firsts[i]."""

    rows: IntArray
    firsts: IntArray

    def __len__(self) -> int:
        return len(self.rows)


def quick_keys(raw: npt.NDArray[Any]) -> Keys:
    """(N,) keys from some coordinates of each row; equal rows have equal keys."""
    return _row_keys(as_float32(raw[:, :QUICK]))


def _row_keys(block: FloatArray) -> Keys:
    """(N,) sums of the bits of each row times fixed odd numbers."""
    if block.shape[1] % 2:
        block = np.pad(block, ((0, 0), (0, 1)))
    words = block.view(np.uint64)  # (N, D / 2)
    keys: Keys = np.einsum("nd,d->n", words, _odd_numbers(words.shape[1]))
    return keys


@cache
def _odd_numbers(count: int) -> Keys:
    return np.random.default_rng(0).integers(2**63, size=count, dtype=np.uint64) * 2 + 1


def find_doubles(keys: Keys, read: Callable[[], Iterable[npt.NDArray[Any]]]) -> Doubles:
    """Doubled rows, given the quick keys of all rows.

    read() gives the rows again, in blocks; it is called only if two keys agree.
    """
    suspects = _repeated(keys)
    if len(suspects):  # look at whole rows now
        longer = [_row_keys(as_float32(rows)) for _, rows in _chosen(suspects, read())]
        suspects = suspects[_repeated(np.concatenate(longer))]
    doubled, firsts = [], []
    first_of: dict[bytes, int] = {}
    for rows, vectors in _chosen(suspects, read() if len(suspects) else ()):
        for row, vector in zip(rows.tolist(), as_float32(vectors), strict=True):
            digest = hashlib.blake2b(vector.tobytes(), digest_size=16).digest()
            first = first_of.setdefault(digest, row)
            if first != row:
                doubled.append(row)
                firsts.append(first)
    return Doubles(np.array(doubled, dtype=np.int64), np.array(firsts, dtype=np.int64))


def _repeated(keys: Keys) -> IntArray:
    """Places of the keys that stand more than once, ascending."""
    ordered = np.sort(keys)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    return np.flatnonzero(np.isin(keys, twice)) if len(twice) else np.empty(0, dtype=np.int64)


def _chosen(
    rows: IntArray, blocks: Iterable[npt.NDArray[Any]]
) -> Iterator[tuple[IntArray, npt.NDArray[Any]]]:
    """(rows, vectors) of the requested rows, ascending, block by block."""
    start = 0
    for block in blocks:
        here = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(block))]
        if len(here):
            yield here, block[here - start]
        start += len(block)


def id_order(ids: StrArray | None) -> IntArray | None:
    """Rows in the order of their ids; None if they stand in it already, or have no ids."""
    if ids is None or len(ids) < 2 or bool((ids[1:] > ids[:-1]).all()):
        return None
    return np.argsort(ids, kind="stable")


def inverse(row_at: IntArray, *, length: int) -> IntArray:
    """(length,) the place of each row, where row_at[place] is the row or −1."""
    places = np.empty(length, dtype=np.int64)
    here = np.flatnonzero(row_at >= 0)
    places[row_at[here]] = here
    return places


class Groups:
    """Rows that are one and the same vector, by the first of them."""

    def __init__(self, doubles: Doubles) -> None:
        rows = np.concatenate([doubles.rows, np.unique(doubles.firsts)])
        firsts = np.concatenate([doubles.firsts, np.unique(doubles.firsts)])
        self.rows = np.sort(rows)
        self.first_of = firsts[np.argsort(rows)]
        self.firsts, self.counts = np.unique(firsts, return_counts=True)
        self.starts = np.cumsum(self.counts) - self.counts
        self.members = rows[np.lexsort((rows, firsts))]

    def unfold(
        self, line: IntArray, rows: IntArray, scores: FloatArray
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Every group that has a row on a line comes whole, with the best score of those rows.

        All three are (n,); rows without a double stay as they are. line is ascending before and
        afterwards.
        """
        within = among(rows, self.rows)
        first = self.first_of[np.searchsorted(self.rows, rows[within])]
        pair = np.stack([line[within], first], axis=1)
        unique, which = np.unique(pair, axis=0, return_inverse=True)
        best = np.full(len(unique), -np.inf, dtype=np.float32)
        np.maximum.at(best, which.reshape(-1), scores[within])
        group = np.searchsorted(self.firsts, unique[:, 1])
        counts = self.counts[group]
        nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        members = self.members[np.repeat(self.starts[group], counts) + nth]
        all_lines = np.concatenate([line[~within], np.repeat(unique[:, 0], counts)])
        all_rows = np.concatenate([rows[~within], members])
        all_scores = np.concatenate([scores[~within], np.repeat(best, counts)])
        order = np.argsort(all_lines, kind="stable")
        return all_lines[order], all_rows[order], all_scores[order]
