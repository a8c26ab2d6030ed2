"""The k best of a stream of scores, for many queries at once.

A score and the place of its row are packed into one integer: the higher the score, and among
equal scores the lower the place, the larger the integer. So keys are sorted and partitioned as
plain integers, and no order is left to chance.
"""

from __future__ import annotations

import numpy as np

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


def reaching(scores: FloatArray, floor: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """(line, column, score) of all scores (q, w) that reach the floor (q, 1) of their line."""
    lines, width = scores.shape
    padded = -(-width // 8) * 8
    mask = np.empty((lines, padded), dtype=bool)
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
    """The k best keys of each query so far, with space for candidates that may join them."""

    def __init__(self, n_queries: int, k: int) -> None:
        self.k = k
        self.room = self.capacity(k) - k
        self.keys = np.full((n_queries, self.capacity(k)), EMPTY)
        self.filled = np.zeros(n_queries, dtype=np.int64)
        self.floor = np.full((n_queries, 1), -np.inf, dtype=np.float32)  # the k-th best score

    @staticmethod
    def capacity(k: int) -> int:
        return k + max(2 * k, 256)

    def add(self, start: int, stop: int, line: IntArray, keys: IntArray) -> None:
        """Candidates for the queries start … stop; line counts from start and is ascending."""
        counts = np.bincount(line, minlength=stop - start)
        nth = np.arange(len(line)) - np.repeat(np.cumsum(counts) - counts, counts)
        most = int(counts.max(initial=0))
        if (self.filled[start:stop] + counts).max(initial=0) > self.k + self.room:
            self.settle(start, stop)
        if most <= self.room:
            self._put(start, line, nth, keys)
            self.filled[start:stop] += counts
            return
        for first in range(0, most, self.room):  # many equal or ascending scores
            part = (nth >= first) & (nth < first + self.room)
            self._put(start, line[part], nth[part] - first, keys[part])
            self.filled[start:stop] += np.clip(counts - first, 0, self.room)
            self.settle(start, stop)

    def _put(self, start: int, line: IntArray, nth: IntArray, keys: IntArray) -> None:
        width = self.keys.shape[1]
        first = self.filled[start : start + int(line[-1]) + 1] if len(line) else self.filled[:0]
        first = first + np.arange(start, start + len(first)) * width
        self.keys.reshape(-1)[first[line] + nth] = keys

    def settle(self, start: int, stop: int) -> None:
        """Keep the k best and raise the floor to the last of them."""
        keys = self.keys[start:stop]
        keys.partition(self.room, axis=1)
        keys[:, : self.k] = np.sort(keys[:, self.room :], axis=1)[:, ::-1]  # empty ones last
        keys[:, self.k :] = EMPTY
        self.filled[start:stop] = np.minimum(self.filled[start:stop], self.k)
        self.floor[start:stop, 0] = unpack(keys[:, self.k - 1])[0]

    def sorted(self) -> tuple[FloatArray, IntArray]:
        """(scores, places), both (Q, k), best first."""
        keys = np.sort(self.keys, axis=1)[:, ::-1]
        return unpack(np.ascontiguousarray(keys[:, : self.k]))
