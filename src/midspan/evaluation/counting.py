"""Ranks of a few columns among all scores of a line, exactly and without a full sort.

The rank of a relevant item is the number of scores above its own. With few relevant items a line
is compared with each of their scores; with many it is sorted in blocks, and the scores are looked
up in them: the more scores, the longer the blocks, so that work grows with the gallery and not with
the gallery times the relevant items. Columns stand in the order that decides between equal scores,
so an equal score counts as above if and only if its column comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from midspan.evaluation.relevance import among
from midspan.evaluation.scores import BoolArray
from midspan.spaces import FloatArray, IntArray

Counts = npt.NDArray[np.int32]

BLOCK = 8192  # columns looked at together; NumPy needs more than 4096 for full speed
COMPARE_UP_TO = 40  # more thresholds than this: sorting is faster (measured, AVX-512)
PER_LOOK_UP = 32  # scores sorted for each that is looked up: else look-ups cost relevant × gallery
FEW_TIES = 64  # equal scores on a line that are counted one by one
MASK_BYTES = 2**19  # comparisons held at once, so that they stay in the second cache
EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)
EACH_PAIR = np.uint64(0x0001000100010001)
WORDS = 255  # sums of at most 255 words of eight booleans fit their bytes


def ranks_of(scores: FloatArray, thresholds: FloatArray, columns: IntArray) -> IntArray:
    """(q, R) 0-based ranks of scores[i, columns[i, j]] = thresholds[i, j] on their lines.

    scores: (q, G), −inf where a column does not count. thresholds: (q, R), +inf where there is
    nothing to rank; the rank is 0 there.
    """
    ranks = np.zeros(thresholds.shape, dtype=np.int64)
    compared = thresholds.shape[1] <= COMPARE_UP_TO
    width = BLOCK if compared else max(BLOCK, PER_LOOK_UP * thresholds.shape[1])
    for start in range(0, scores.shape[1], width):
        block = scores[:, start : start + width]
        limits = before_block(thresholds, columns, stop=start + width)
        own = (columns >= start) & (columns < start + width) & (thresholds < np.inf)
        if compared:
            whole = Segments.whole(block.shape[1])
            ranks += count_above(block, limits, whole)[:, :, 0]
            ranks += _ties_before(block, thresholds, columns - start, own)
        else:
            ranks += _count_sorted(block, limits, thresholds, columns - start, own)
    return ranks


def before_block(thresholds: FloatArray, columns: IntArray, *, stop: int) -> FloatArray:
    """Thresholds for a block that ends at `stop`: where the item comes later, equal is above."""
    below = np.nextafter(thresholds, np.float32(-np.inf))
    return np.where(columns >= stop, below, thresholds)


@dataclass(frozen=True, slots=True)
class Segments:
    """Parts of a block of columns in which scores are counted apart."""

    width: int
    cuts: IntArray  # (c,) first words of pieces whose byte sums cannot overflow
    firsts: IntArray  # (n,) the first piece of each segment
    length: int  # words in each piece if they are equal, else 0

    @classmethod
    def of(cls, starts: IntArray, *, width: int) -> Segments:
        """starts: (n,) where the segments begin, multiples of 8, the first one 0."""
        words = -(-width // 8)
        edges = np.append(starts // 8, words)
        cuts = np.concatenate([np.arange(*edge, WORDS) for edge in pairwise(edges)])
        lengths = np.unique(np.diff(cuts, append=words))
        return cls(
            width=width,
            cuts=cuts,
            firsts=np.searchsorted(cuts, starts // 8),
            length=int(lengths[0]) if len(lengths) == 1 else 0,
        )

    @classmethod
    def whole(cls, width: int) -> Segments:
        return cls.of(np.zeros(1, dtype=np.int64), width=width)


def count_above(
    block: FloatArray, thresholds: FloatArray, segments: Segments, *, equal: bool = False
) -> Counts:
    """(q, R, n) how many scores (q, w) are above (or equal to) thresholds (q, R), by segment."""
    lines, width = block.shape
    n_thresholds = thresholds.shape[1]
    padded = -(-width // 8) * 8
    compare = np.equal if equal else np.greater
    step = max(1, MASK_BYTES // max(1, n_thresholds * padded))
    mask = np.empty((min(step, lines), n_thresholds, padded), dtype=bool)
    mask[:, :, width:] = False
    sums = np.empty((lines, n_thresholds, len(segments.cuts)), dtype=np.uint64)
    for first in range(0, lines, step):
        part, limits = block[first : first + step], thresholds[first : first + step]
        held = mask[: len(part)]
        compare(part[:, None, :], limits[:, :, None], out=held[:, :, :width])
        words, total = held.view(np.uint64), sums[first : first + step]
        if segments.length:  # eight sums of one byte each
            np.einsum("qrcl->qrc", words.reshape(*total.shape, segments.length), out=total)
        else:
            np.add.reduceat(words, segments.cuts, axis=2, out=total)
    counts = _sum_bytes(sums)
    if len(segments.firsts) < len(segments.cuts):
        counts = np.add.reduceat(counts, segments.firsts, axis=2)
    return counts


def _sum_bytes(words: npt.NDArray[np.uint64]) -> Counts:
    """The sum of the eight bytes of each word, in four steps for all words at once."""
    pairs = words & EVEN_BYTES
    words >>= np.uint64(8)
    words &= EVEN_BYTES
    pairs += words
    pairs *= EACH_PAIR
    pairs >>= np.uint64(48)
    return pairs.astype(np.int32)


def _ties_before(
    block: FloatArray, thresholds: FloatArray, columns: IntArray, own: BoolArray
) -> IntArray:
    """(q, R) equal scores before the item's own column, for the items inside this block."""
    extra = np.zeros(thresholds.shape, dtype=np.int64)
    width = int(own.sum(axis=1).max(initial=0))
    if width == 0:
        return extra
    chosen = np.argsort(~own, axis=1, kind="stable")[:, :width]  # own ones first
    limits = np.take_along_axis(np.where(own, thresholds, np.nan), chosen, axis=1)
    whole = Segments.whole(block.shape[1])
    equal = count_above(block, limits.astype(np.float32), whole, equal=True)[:, :, 0]
    line, place = np.nonzero(equal > 1)  # each one equals itself
    which = chosen[line, place]
    extra[line, which] = equal_before(block, line, thresholds[line, which], columns[line, which])
    return extra


def equal_before(
    block: FloatArray, line: IntArray, values: FloatArray, columns: IntArray
) -> IntArray:
    """(n,) how often block[line[i], : columns[i]] equals values[i]."""
    counts = np.empty(len(line), dtype=np.int64)
    place = np.arange(block.shape[1])
    for some, same in equal_pairs(block, line, values):
        counts[some] = np.count_nonzero(same & (place < columns[some, None]), axis=1)
    return counts


def equal_pairs(
    block: FloatArray, line: IntArray, values: FloatArray
) -> Iterator[tuple[slice, BoolArray]]:
    """(which of the pairs, (m, w) where block[line[i]] equals values[i]), some at a time."""
    for first in range(0, len(line), 64):
        some = slice(first, first + 64)
        yield some, block[line[some]] == values[some, None]


def _count_sorted(
    block: FloatArray,
    limits: FloatArray,
    thresholds: FloatArray,
    columns: IntArray,
    own: npt.NDArray[np.bool_],
) -> IntArray:
    """(q, R) the same by a sort of each line of the block."""
    width = block.shape[1]
    counts = np.empty(limits.shape, dtype=np.int64)
    for i, line in enumerate(block):
        ordered = np.sort(line)
        counts[i] = width - np.searchsorted(ordered, limits[i], side="right")
        mine = np.flatnonzero(own[i])
        if len(mine):
            values = thresholds[i, mine]
            first = np.searchsorted(ordered, values, side="left")
            last = np.searchsorted(ordered, values, side="right")
            tied = mine[last - first > 1]
            counts[i, tied] += equal_before_on(line, thresholds[i, tied], columns[i, tied])
    return counts


def equal_before_on(line: FloatArray, values: FloatArray, columns: IntArray) -> IntArray:
    """(k,) how often line[: columns[j]] equals values[j]; with many, in one look at the line."""
    if len(values) <= FEW_TIES:
        pairs = zip(values, columns.tolist(), strict=True)
        counts = [np.count_nonzero(line[:column] == value) for value, column in pairs]
        return np.array(counts, dtype=np.int64)
    known, group = np.unique(values, return_inverse=True)
    here = np.flatnonzero(among(line, known))
    keys = np.sort(np.searchsorted(known, line[here]) * len(line) + here)  # by value, then column
    first = group * len(line)
    return np.searchsorted(keys, first + columns) - np.searchsorted(keys, first)
