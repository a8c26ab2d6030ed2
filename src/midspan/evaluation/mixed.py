"""Ranks in a gallery that turns from old to new item by item, at all moments at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from midspan.evaluation.counting import (
    BLOCK,
    COMPARE_UP_TO,
    Counts,
    Segments,
    count_above,
    equal_pairs,
)
from midspan.evaluation.ranks import Scorer, ranked_items
from midspan.evaluation.relevance import NO_ROW, Ignored
from midspan.evaluation.scores import BoolArray
from midspan.evaluation.ties import Doubles, find_doubles, id_order, inverse
from midspan.evaluation.topk import EMPTY, sortable_bits
from midspan.spaces import Embeddings, FloatArray, IntArray

PLACES = 2**24  # what fits alongside a score and a moment


@dataclass(frozen=True, slots=True)
class Block:
    """Columns that come together in the order of ids, sorted by moment inside."""

    columns: slice
    starts: IntArray  # (m,) where the columns of one moment begin, multiples of 8
    moments: slice | IntArray  # (m,) which they are; a slice, as is usual, is much faster
    place: IntArray  # (w,) place of each column in the order of ids, NO_ROW for a filler
    n_fillers: int  # columns without an item: zero vectors, whose score is always 0
    segments: Segments
    whole: Segments


@dataclass(frozen=True, slots=True)
class Lines:
    """Both scores of all columns for some queries, and of their relevant items."""

    old: FloatArray  # (q, C)
    new: FloatArray  # (q, C)
    columns: IntArray  # (q, R) where the relevant items stand, NO_ROW where there is none
    old_own: FloatArray  # (q, R) their old scores, +inf where there is none
    new_own: FloatArray  # (q, R)


@dataclass(frozen=True, slots=True)
class MixedScorer:
    """The same gallery in old and new vectors; columns as `_arrange` puts them."""

    old: Scorer
    new: Scorer
    blocks: tuple[Block, ...]
    place: IntArray  # (C,) place of each column in the order of ids
    moment: IntArray  # (C,) first point at which the column is new, 0 … P
    doubles: Doubles  # rows of old and new, one after the other
    n_points: int

    @classmethod
    def of(
        cls,
        query: Embeddings,
        old: Embeddings,
        new: Embeddings,
        *,
        moment: IntArray,
        n_points: int,
        direct: bool,
    ) -> MixedScorer:
        by_id = id_order(old.ids)
        by_id = np.arange(len(old)) if by_id is None else by_id
        row_at, blocks = _arrange(by_id, moment)
        scorers = [
            Scorer.of(query, gallery, metric=None, direct=direct, row_at=row_at)
            for gallery in (old, new)
        ]
        return cls(
            old=scorers[0],
            new=scorers[1],
            blocks=blocks,
            place=np.concatenate([block.place for block in blocks]),
            moment=moment[row_at],
            doubles=find_doubles(
                np.concatenate([scorer.keys for scorer in scorers]),
                lambda: [old.vectors, new.vectors],
            ),
            n_points=n_points,
        )

    @property
    def n_columns(self) -> int:
        return len(self.place)

    @property
    def sortable(self) -> bool:
        """Whether place and moment fit into the low half of an integer."""
        return self.old.n_gallery < PLACES and 2 * (self.n_points + 1) <= 256

    def lines(self, queries: IntArray, rows: IntArray, ignored: Ignored, room: FloatArray) -> Lines:
        old, new = self.old.scores(queries, room[0]), self.new.scores(queries, room[1])
        n_rows = self.old.n_gallery
        among_both = (self.doubles.rows >= n_rows) & (self.doubles.firsts < n_rows)
        if among_both.any():  # the same vector, old for one item and new for another
            to = self.old.column(self.doubles.rows[among_both] - n_rows)
            new[:, to] = old[:, self.old.column(self.doubles.firsts[among_both])]
        columns, old_own = ranked_items(self.old, rows, old)
        _, new_own = ranked_items(self.new, rows, new)
        for scores in (old, new):
            ignored.blank(scores, queries, self.old.columns)
        return Lines(old=old, new=new, columns=columns, old_own=old_own, new_own=new_own)


def _arrange(by_id: IntArray, moment: IntArray) -> tuple[IntArray, tuple[Block, ...]]:
    """(row of each column, blocks): items in the order of ids, block by block; inside a block
    by moment, each moment filled up to a multiple of 8 columns."""
    places = inverse(by_id, length=len(by_id))
    row_at, blocks, first = [], [], 0
    for start in range(0, len(by_id), BLOCK):
        rows = by_id[start : start + BLOCK]
        rows = rows[np.argsort(moment[rows], kind="stable")]
        moments, counts = np.unique(moment[rows], return_counts=True)
        padded = -(-counts // 8) * 8
        starts = np.cumsum(padded) - padded
        columns = np.full(padded.sum(), NO_ROW, dtype=np.int64)
        nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        columns[np.repeat(starts, counts) + nth] = rows
        row_at.append(columns)
        width = len(columns)
        block = Block(
            columns=slice(first, first + width),
            starts=starts,
            moments=_slice_if_possible(moments),
            place=np.where(columns == NO_ROW, NO_ROW, places[columns]),
            n_fillers=int((padded - counts).sum()),
            segments=Segments.of(starts, width=width),
            whole=Segments.whole(width),
        )
        blocks.append(block)
        first += width
    return np.concatenate(row_at), tuple(blocks)


def _slice_if_possible(numbers: IntArray) -> slice | IntArray:
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first + 1 == len(numbers) else numbers


def mixed_ranks(scorer: MixedScorer, lines: Lines, ranks: IntArray, start: int, stop: int) -> None:
    """Fill ranks[:, start:stop] of (P, q, R).

    The relevant item has its old score before its moment and its new score from then on; at each
    point an item is above it by the score that the item has at that point.
    """
    here = slice(start, stop)
    width = int((lines.columns[here] != NO_ROW).sum(axis=1).max(initial=0))
    part = Lines(
        old=lines.old[here],
        new=lines.new[here],
        columns=lines.columns[here, :width],
        old_own=lines.old_own[here, :width],
        new_own=lines.new_own[here, :width],
    )
    count = _compare if width <= COMPARE_UP_TO or not scorer.sortable else _sort
    at_start, change = count(scorer, part)
    np.cumsum(change, axis=2, out=change)
    change += at_start[:, :, None]  # (q, 2R, P + 1), the last one after the end
    turned = scorer.moment[part.columns] <= np.arange(scorer.n_points)[:, None, None]  # (P, q, R)
    at_point = np.moveaxis(change, 2, 0)[:-1]
    ranks[:, here, :width] = np.where(turned, at_point[:, :, width:], at_point[:, :, :width])


def _compare(scorer: MixedScorer, lines: Lines) -> tuple[Counts, Counts]:
    """((q, 2R), (q, 2R, P + 1)): how many items are above the relevant items' old and new scores
    while all are old, and how many more (or fewer) are from each moment on."""
    own = np.concatenate([lines.old_own, lines.new_own], axis=1)  # (q, 2R)
    below = np.nextafter(own, np.float32(-np.inf))
    place = np.tile(np.where(lines.columns == NO_ROW, NO_ROW, scorer.place[lines.columns]), 2)
    at_start = np.zeros(own.shape, dtype=np.int32)
    change = np.zeros((*own.shape, scorer.n_points + 1), dtype=np.int32)
    for i, block in enumerate(scorer.blocks):
        later = place >= (i + 1) * BLOCK  # there, what is equal in this block comes first
        limits = np.where(later, below, own)
        inside = (place >= i * BLOCK) & ~later
        by_old, by_new = (
            _count(scores[:, block.columns], limits, own, inside, own == item, place, block)
            for scores, item in (
                (lines.old, np.tile(lines.old_own, 2)),
                (lines.new, np.tile(lines.new_own, 2)),
            )
        )
        at_start += by_old.sum(axis=2, dtype=np.int32) - (limits < 0) * np.int32(block.n_fillers)
        by_new -= by_old  # fillers have the same score in both and drop out
        change[:, :, block.moments] += by_new
    return at_start, change


def _count(  # noqa: PLR0917
    part: FloatArray,
    limits: FloatArray,
    own: FloatArray,
    inside: BoolArray,
    itself: BoolArray,
    place: IntArray,
    block: Block,
) -> Counts:
    """(q, 2R, m) scores above the limits (q, 2R), by moment; fillers count by their score 0.

    For items inside this block equal scores count as above if they come first.
    """
    counts = count_above(part, limits, block.segments)
    if not inside.any():
        return counts
    chosen = None if inside.all() else np.argsort(~inside, axis=1, kind="stable")
    target = np.where(inside, own, np.float32(np.nan))
    if chosen is not None:
        chosen = chosen[:, : inside.sum(axis=1).max()]
        target, itself = (np.take_along_axis(x, chosen, axis=1) for x in (target, itself))
    equal = count_above(part, target, block.whole, equal=True)[:, :, 0]
    line, which = np.nonzero(equal > itself + (target == 0) * block.n_fillers)
    if chosen is not None:
        which = chosen[line, which]
    for some, same in equal_pairs(part, line, own[line, which]):
        first = (block.place != NO_ROW) & (block.place < place[line[some], which[some], None])
        ties = np.add.reduceat(same & first, block.starts, axis=1, dtype=np.int32)
        counts[line[some], which[some]] += ties
    return counts


def _sort(scorer: MixedScorer, lines: Lines) -> tuple[Counts, Counts]:
    """The same as `_compare` by one sort of all old and new scores of a line.

    Its cost does not grow with the number of relevant items. Behind score and place, the sorted
    integers carry the moment, and whether the score is the item's old or its new one.
    """
    lines_, width = lines.columns.shape
    n_moments = scorer.n_points + 1
    place = np.where(scorer.place == NO_ROW, 0, scorer.place)
    low = ((PLACES - 1 - place) << 8) | scorer.moment
    low = np.concatenate([low, low + n_moments])  # (2C,) old, then new
    fillers = np.flatnonzero(np.tile(scorer.place == NO_ROW, 2))
    at_start = np.zeros((lines_, 2 * width), dtype=np.int32)
    change = np.zeros((lines_, 2 * width, n_moments), dtype=np.int32)
    for i in range(lines_):
        keys = (sortable_bits(np.concatenate([lines.old[i], lines.new[i]])) << 32) | low
        relevant = np.flatnonzero(lines.columns[i] != NO_ROW)
        columns = lines.columns[i, relevant]
        own = keys[np.concatenate([columns, columns + len(scorer.place)])]
        keys[fillers] = EMPTY
        keys.sort()
        order = np.argsort(own)
        at = np.searchsorted(keys, own[order])  # ascending places of the relevant items
        piece = np.repeat(np.arange(len(own) + 1), np.diff(at + 1, prepend=0, append=len(keys)))
        kinds = piece * (2 * n_moments) + (keys & 0xFF)
        table = np.bincount(kinds, minlength=(len(own) + 1) * 2 * n_moments)
        table = table.reshape(len(own) + 1, 2 * n_moments)
        above = np.empty_like(table[:-1])
        above[order] = (np.cumsum(table[::-1], axis=0)[::-1] - table)[:-1]
        to = np.concatenate([relevant, relevant + width])
        at_start[i, to] = above[:, :n_moments].sum(axis=1)
        change[i, to] = above[:, n_moments:] - above[:, :n_moments]
    return at_start, change
