"""The k best of a stream of scores, for many queries at once.

A score and the place of its row are packed into one integer: the higher the score, and among
equal scores the lower the place, the larger the integer. So keys are sorted and partitioned as
plain integers, and no order is left to chance.
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from midspan.evaluation.scores import BoolArray
from midspan.spaces import FloatArray, IntArray

EMPTY = np.iinfo(np.int64).min  # below every key
LOW = 0xFFFFFFFF  # the place takes the low half, counted down


def sortable_bits(scores: FloatArray) -> IntArray:
    """32-bit integers in the order of the scores."""
    bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)  # + 0 makes −0 and 0 equal
    bits ^= (bits >> 63) & 0x7FFFFFFF  # negative floats sort backwards as integers
    return bits


def pack(scores: FloatArray, places: IntArray) -> IntArray:
    """(n,) keys; places are below 2^32."""
    keys: IntArray = (sortable_bits(scores) << 32) | (LOW - places)
    return keys


def unpack(keys: IntArray) -> tuple[FloatArray, IntArray]:
    """Scores and places; −inf and 0 where nothing is."""
    bits = keys >> 32
    bits ^= (bits >> 63) & 0x7FFFFFFF
    nothing = keys == EMPTY
    scores = bits.astype(np.int32).view(np.float32)
    scores[nothing] = -np.inf
    return scores, np.where(nothing, 0, LOW - (keys & LOW))


def reaching(
    scores: FloatArray, floor: FloatArray, *, mask: BoolArray | None = None
) -> tuple[IntArray, IntArray, FloatArray]:
    """(line, column, score) of all scores (q, w) that reach the floor (q, 1) of their line.

    mask: memory for at least (q, w) flags, w rounded up to a multiple of 8.
    """
    lines, width = scores.shape
    padded = -(-width // 8) * 8
    if mask is None:
        mask = np.empty(lines * padded, dtype=bool)
    mask = mask[: lines * padded].reshape(lines, padded)
    mask[:, width:] = False
    np.greater_equal(scores, floor, out=mask[:, :width])
    words = mask.reshape(-1).view(np.uint64)
    some = np.flatnonzero(words != 0)  # eight scores at a time: nearly all words are empty
    inside = np.flatnonzero(words[some].view(np.bool_))
    flat = (some[inside >> 3] << 3) + (inside & 7)
    counts = np.diff(np.searchsorted(flat, np.arange(lines + 1) * padded))
    line = np.repeat(np.arange(lines), counts)
    column = flat - line * padded
    if padded == width and scores.flags.c_contiguous:
        return line, column, scores.reshape(-1)[flat]
    return line, column, scores[line, column]


class Best:
    """The k best keys of some queries so far, with space for candidates that may join them.

    Threads share it: `add` takes the lock. A floor that is read without it may be an older one,
    which lets a few more candidates pass.
    """

    def __init__(self, n_queries: int, k: int) -> None:
        self.k = k
        self.room = self.capacity(k) - k
        self.keys = np.full((n_queries, self.capacity(k)), EMPTY)
        self.filled = np.zeros(n_queries, dtype=np.int64)
        self.floor = np.full((n_queries, 1), -np.inf, dtype=np.float32)  # the k-th best score
        self.seen = 0  # rows that were offered …
        self.settled = 0  # … when the floor was raised last
        self.lock = Lock()

    @staticmethod
    def capacity(k: int) -> int:
        return k + max(2 * k, 256)

    def step(self, rows: int) -> int:
        """How many of the next rows to compare with the present floor.

        The floor is raised whenever the number of rows seen has doubled, so about k rows join
        between two times: k · log2(G / k) in all.
        """
        return min(rows, max(self.k, 2 * max(self.k, self.settled) - self.seen))

    def add(self, line: IntArray, keys: IntArray, *, rows: int) -> None:
        """Candidates among that many further rows; line is ascending."""
        counts = np.bincount(line, minlength=len(self.keys))
        nth = np.arange(len(line)) - np.repeat(np.cumsum(counts) - counts, counts)
        most = int(counts.max(initial=0))
        with self.lock:
            self.seen += rows
            if (self.filled + counts).max(initial=0) > self.k + self.room:
                self.settle()
            if most <= self.room:
                self._put(line, nth, keys)
                self.filled += counts
            else:  # many equal or ascending scores
                for first in range(0, most, self.room):
                    part = (nth >= first) & (nth < first + self.room)
                    self._put(line[part], nth[part] - first, keys[part])
                    self.filled += np.clip(counts - first, 0, self.room)
                    self.settle()
            if self.seen >= 2 * max(self.k, self.settled):
                self.settle()

    def _put(self, line: IntArray, nth: IntArray, keys: IntArray) -> None:
        first = self.filled + np.arange(len(self.keys)) * self.keys.shape[1]
        self.keys.reshape(-1)[first[line] + nth] = keys

    def settle(self) -> None:
        """Keep the k best and raise the floor to the last of them."""
        keys = self.keys
        keys.partition(self.room, axis=1)
        keys[:, : self.k] = np.sort(keys[:, self.room :], axis=1)[:, ::-1]  # empty ones last
        keys[:, self.k :] = EMPTY
        self.filled[:] = np.minimum(self.filled, self.k)
        self.floor[:, 0] = unpack(keys[:, self.k - 1])[0]
        self.settled = self.seen

    def sorted(self) -> tuple[FloatArray, IntArray]:
        """(scores, places), both (Q, k), best first."""
        keys = np.sort(self.keys, axis=1)[:, ::-1]
        return unpack(np.ascontiguousarray(keys[:, : self.k]))
