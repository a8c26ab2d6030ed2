"""Ranks of a few columns among all scores of a line, exactly and without a full sort.

The rank of a relevant item is the number of scores above its own. With few relevant items a line
is compared with each of their scores; with many it is sorted in blocks that fit the cache, and the
scores are looked up in them. Columns stand in the order that decides between equal scores, so an
equal score counts as above if and only if its column comes first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from midspan.evaluation.scores import BoolArray
from midspan.spaces import FloatArray, IntArray

BLOCK = 8192  # columns looked at together; NumPy wants more than 4096 for full speed
COMPARE_UP_TO = 40  # more thresholds than this: sorting is faster (measured, AVX-512)
MASK_BYTES = 2**19  # comparisons held at once, so that they stay in the second cache
WHOLE = np.zeros(1, dtype=np.int64)  # one segment
WORDS = 128  # sums of at most 255 words of eight booleans fit their bytes


def ranks_of(scores: FloatArray, thresholds: FloatArray, columns: IntArray) -> IntArray:
    """(q, R) 0-based ranks of scores[i, columns[i, j]] = thresholds[i, j] on their lines.

    scores: (q, G), −inf where a column does not count. thresholds: (q, R), +inf where there is
    nothing to rank; the rank is 0 there.
    """
    ranks = np.zeros(thresholds.shape, dtype=np.int64)
    for start in range(0, scores.shape[1], BLOCK):
        block = scores[:, start : start + BLOCK]
        limits = before_block(thresholds, columns, stop=start + BLOCK)
        own = (columns >= start) & (columns < start + BLOCK) & (thresholds < np.inf)
        if thresholds.shape[1] <= COMPARE_UP_TO:
            ranks += count_above(block, limits, WHOLE)[:, :, 0]
            ranks += _ties_before(block, thresholds, columns - start, own)
        else:
            ranks += _count_sorted(block, limits, thresholds, columns - start, own)
    return ranks


def before_block(thresholds: FloatArray, columns: IntArray, *, stop: int) -> FloatArray:
    """Thresholds for a block that ends at `stop`: where the item comes later, equal is above."""
    below = np.nextafter(thresholds, np.float32(-np.inf))
    return np.where(columns >= stop, below, thresholds)


def count_above(
    block: FloatArray, thresholds: FloatArray, starts: IntArray, *, equal: bool = False
) -> IntArray:
    """(q, R, n) how many scores (q, w) are above (equal to) thresholds (q, R) in n segments.

    starts: (n,) where the segments begin, multiples of 8.
    """
    lines, width = block.shape
    n_thresholds = thresholds.shape[1]
    padded = -(-width // 8) * 8
    # Long segments are cut where their byte sums would overflow, and put together again.
    cuts = np.union1d(starts // 8, np.arange(0, padded // 8, WORDS))
    first_cut = np.searchsorted(cuts, starts // 8)
    counts = np.empty((lines, n_thresholds, len(starts)), dtype=np.int64)
    compare = np.equal if equal else np.greater
    step = max(1, MASK_BYTES // max(1, n_thresholds * padded))
    mask = np.empty((min(step, lines), n_thresholds, padded), dtype=bool)
    mask[:, :, width:] = False
    for first in range(0, lines, step):
        part = block[first : first + step]
        held = mask[: len(part)]
        compare(part[:, None, :], thresholds[first : first + step, :, None], out=held[:, :, :width])
        sums = np.add.reduceat(held.view(np.uint64), cuts, axis=2)  # eight sums of a byte each
        by_cut = sums.view(np.uint8).reshape(*sums.shape, 8).sum(axis=3, dtype=np.int64)
        counts[first : first + step] = np.add.reduceat(by_cut, first_cut, axis=2)
    return counts


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
    equal = count_above(block, limits.astype(np.float32), WHOLE, equal=True)[:, :, 0]
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
    for first in range(0, len(line), 64):
        some = slice(first, first + 64)
        same = block[line[some]] == values[some, None]
        same &= place < columns[some, None]
        counts[some] = np.count_nonzero(same, axis=1)
    return counts


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
    for i, ordered in enumerate(np.sort(block, axis=1)):
        counts[i] = width - np.searchsorted(ordered, limits[i], side="right")
        mine = np.flatnonzero(own[i])
        if len(mine):
            values = thresholds[i, mine]
            first = np.searchsorted(ordered, values, side="left")
            last = np.searchsorted(ordered, values, side="right")
            tied = mine[last - first > 1]
            line = np.full(len(tied), i)
            counts[i, tied] += equal_before(block, line, thresholds[i, tied], columns[i, tied])
    return counts
