"""The vectors of one space in a process: a mapped snapshot, and a tail of later ones in memory.

A vector has a *slot*: 0 … n − 1 in the snapshot, from n on in the tail. A segment is a value that
never changes. A change makes a new one that shares the mapped files and the tail's arrays, which
are only appended to; searches that hold the former one finish on it, without locks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from midspan.gallery.engines.embedded.ivf import BoolArray, Bytes, Ivf
from midspan.gallery.engines.embedded.snapshot import IndexSnapshot
from midspan.spaces import FloatArray, IntArray, Space

NOWHERE = -1
COMPACT = 1024  # dead vectors in a tail that may stay there, however few live


class Tail:
    """Appended by one thread at a time; `lists` index the first `listed` of it."""

    def __init__(self, dim: int, *, blank: Ivf | None) -> None:
        self.count = 0
        self._rows = np.empty(256, dtype=np.int64)
        self._vectors = np.empty((256, dim), dtype=np.float32)
        empty = np.empty(0, dtype=np.int64)
        self._sorted: tuple[IntArray, IntArray] = empty, empty  # rows, their places
        self._highest = -1
        self.blank = blank  # of the snapshot: None without one
        self.lists: Ivf | None = None
        self.listed = 0
        self.lock = SharedLock()  # of the two above

    @property
    def rows(self) -> IntArray:
        return self._rows[: self.count]

    @property
    def vectors(self) -> FloatArray:
        return self._vectors[: self.count]

    def append(self, rows: IntArray, vectors: FloatArray) -> None:
        end = self.count + len(rows)
        if end > len(self._rows):
            self.reserve(max(end, len(self._rows) + len(self._rows) // 2))
        self._rows[self.count : end], self._vectors[self.count : end] = rows, vectors
        self.count = end
        self._highest = max(self._highest, int(rows.max(initial=-1)))

    def reserve(self, capacity: int) -> None:
        if capacity > len(self._rows):
            old_rows, old_vectors = self.rows, self.vectors
            self._rows = np.empty(capacity, dtype=np.int64)
            self._vectors = np.empty((capacity, old_vectors.shape[1]), dtype=np.float32)
            self._rows[: self.count], self._vectors[: self.count] = old_rows, old_vectors

    def find(self, rows: IntArray) -> IntArray:
        """The last place of each row, or NOWHERE."""
        if self._highest < 0 or int(rows.min(initial=0)) > self._highest:
            return np.full(len(rows), NOWHERE)
        known, places = self._sorted
        if len(known) < self.count:
            present = self.rows
            places = np.argsort(present, kind="stable")
            known = present[places]
            self._sorted = known, places
        at = np.searchsorted(known, rows, side="right") - 1
        last_places = np.where(known[at] == rows, places[at], NOWHERE)
        last_places[at < 0] = NOWHERE
        return last_places

    def fold(self) -> None:
        """Bring what is not listed into the lists; searches wait only for the last step."""
        if self.blank is None:
            return
        lists, start, end = self.lists or self.blank.empty(), self.listed, self.count
        nearest, rotated = lists.place(self._vectors[start:end])
        with self.lock.exclusive():
            lists.add_placed(np.arange(start, end), rotated, nearest)
            self.lists, self.listed = lists, end


@dataclass(frozen=True, slots=True)
class Segment:
    number: int
    space: Space
    snapshot: IndexSnapshot | None
    tail: Tail
    tail_rows: IntArray
    tail_vectors: FloatArray
    dead: BoolArray | None  # (size,) slots that were deleted or written again; None: no slot
    dead_count: int

    @classmethod
    def begin(cls, number: int, space: Space, snapshot: IndexSnapshot | None) -> Segment:
        """As the snapshot has it."""
        tail = Tail(space.dim, blank=None if snapshot is None else snapshot.blank)
        return cls(number, space, snapshot, tail, tail.rows, tail.vectors, None, 0)

    @property
    def base(self) -> int:
        """Slots of the snapshot."""
        return 0 if self.snapshot is None else len(self.snapshot.rows)

    @property
    def size(self) -> int:
        return self.base + len(self.tail_rows)

    @property
    def live(self) -> int:
        return self.size - self.dead_count

    def slots(self, rows: IntArray) -> IntArray:
        """Of the live vectors of these rows; NOWHERE where there is none."""
        slots = self.tail.find(rows)
        slots[slots >= len(self.tail_rows)] = NOWHERE  # appended later than this segment
        slots[slots >= 0] += self.base
        if self.snapshot is not None:
            known = self.snapshot.rows
            at = np.minimum(np.searchsorted(known, rows), len(known) - 1)
            slots = np.where((slots < 0) & (known[at] == rows), at, slots)
        if self.dead is not None:
            slots[(slots >= 0) & self.dead[slots]] = NOWHERE
        return slots

    def rows(self) -> IntArray:
        """Of every live vector, in no order."""
        if self.snapshot is None:
            every = self.tail_rows
        else:
            every = np.concatenate([self.snapshot.rows, self.tail_rows])
        return every if self.dead is None else every[~self.dead]

    def change(self, *, gone: IntArray, rows: IntArray, vectors: FloatArray) -> Segment:
        """Without the rows `gone`, and with these vectors in place of what their rows had."""
        if not len(gone) and not len(rows):
            return self
        slots = self.slots(np.concatenate([gone, rows]))
        slots = np.unique(slots[slots >= 0])
        last = _last_of_each(rows)
        self.tail.append(rows[last], vectors[last])
        size = self.base + self.tail.count
        dead = None
        if self.dead is not None or len(slots):
            dead = np.zeros(size, dtype=bool)
            if self.dead is not None:
                dead[: self.size] = self.dead
            dead[slots] = True
        return self._with(dead, self.dead_count + len(slots))._compacted()

    def without(self, live: IntArray) -> Segment:
        """Only rows of this list, which is sorted, are alive."""
        every = self.tail_rows
        if self.snapshot is not None:
            every = np.concatenate([self.snapshot.rows, every])
        at = np.minimum(np.searchsorted(live, every), max(0, len(live) - 1))
        dead = live[at] != every if len(live) else np.ones(len(every), dtype=bool)
        if self.dead is not None:
            dead |= self.dead
        count = int(dead.sum())
        return self._with(dead if count else None, count)._compacted()

    def _with(self, dead: BoolArray | None, count: int) -> Segment:
        tail = self.tail
        return Segment(
            self.number, self.space, self.snapshot, tail, tail.rows, tail.vectors, dead, count
        )

    def _compacted(self) -> Segment:
        """Memory follows what lives: a tail that is mostly dead is copied into a new one."""
        if self.dead is None:
            return self
        dead = self.dead[self.base :]
        count = int(dead.sum())
        if count <= max(COMPACT, len(dead) // 2):
            return self
        tail = Tail(self.space.dim, blank=self.tail.blank)
        tail.append(self.tail_rows[~dead], self.tail_vectors[~dead])
        left = self.dead_count - count
        kept = np.concatenate([self.dead[: self.base], np.zeros(tail.count, dtype=bool)])
        return Segment(
            self.number,
            self.space,
            self.snapshot,
            tail,
            tail.rows,
            tail.vectors,
            kept if left else None,
            left,
        )


def _last_of_each(rows: IntArray) -> IntArray | slice:
    """Places of the last vector of each row; nearly always all of them."""
    if len(rows) < 2 or bool((rows[1:] > rows[:-1]).all()):
        return slice(None)
    _, places = np.unique(rows[::-1], return_index=True)
    return np.sort(len(rows) - 1 - places)


# ---- a lock for the lists of a tail --------------------------------------------------------------


class SharedLock:
    """`with lock.shared():` for searches, `with lock.exclusive():` for the moment of a change."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._readers = 0
        self._waiting = 0
        self._writing = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._condition:
            while self._writing or self._waiting:
                self._condition.wait()
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                if not self._readers:
                    self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._condition:
            self._waiting += 1
            while self._writing or self._readers:
                self._condition.wait()
            self._waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()


# ---- what of a segment counts for one preference list: all but dead and superseded vectors -------
# A row is superseded if it has a vector in a better space. That is a mask over the slots, one for
# each set of better spaces that searches ask with: an old client, a new one and the time after a
# rollback each have their own mask over the same snapshot, and none of them moves a vector.
#
# Where less than 70 % of a snapshot counts (in the course of an upgrade), its lists are copied to
# memory without the rest, so that searches do not read what they must leave out.

MOSTLY = 0.9  # share that counts, above which leaving out afterwards is cheaper than a selector
REDUCE = 0.7  # share of the present lists that counts, below which smaller ones are made
FEW = 4096  # vectors that need no lists


@dataclass(frozen=True, slots=True)
class Reduced:
    """What was left of a snapshot when it was made; a slot that has gone since is still in it."""

    count: int
    lists: Ivf | None
    few: tuple[IntArray, FloatArray] | None  # slots and vectors


@dataclass(slots=True)
class Reduction:
    """Shared by the versions of a view; replaced by a background thread."""

    now: Reduced | None = None
    pending: bool = False


@dataclass(frozen=True, slots=True)
class View:
    segment: Segment
    excluded: BoolArray | None  # (size,); None: every slot counts
    live: int  # slots that count
    live_base: int  # of them in the snapshot
    reduction: Reduction
    _bits: list[tuple[Bytes, Bytes]] = field(default_factory=list)

    @property
    def live_tail(self) -> int:
        return self.live - self.live_base

    @property
    def reducible(self) -> bool:
        """Much of what its lists hold does not count any more."""
        if self.segment.snapshot is None or self.reduction.pending:
            return False
        now = self.reduction.now
        count = self.segment.base if now is None else now.count
        return self.live_base < REDUCE * count and count > FEW

    def bits(self) -> tuple[Bytes, Bytes]:
        """Which slots count, a bit for each: of the snapshot, of the tail."""
        if not self._bits:
            base, excluded = self.segment.base, self.excluded
            assert excluded is not None
            counts = ~excluded
            self._bits.append((pack(counts[:base]), pack(counts[base:])))
        return self._bits[0]

    def reduce(self) -> None:
        """Lists of what counts now; takes a fraction of a second for a million slots."""
        snapshot = self.segment.snapshot
        assert snapshot is not None
        assert self.excluded is not None
        counts = ~self.excluded[: self.segment.base]
        slots = np.flatnonzero(counts)
        if len(slots) <= FEW:
            self.reduction.now = Reduced(len(slots), None, (slots, snapshot.vectors[slots]))
            return
        lists = snapshot.blank.empty()
        now = self.reduction.now
        source = snapshot.ivf if now is None or now.lists is None else now.lists
        source.copy_to(lists, np.where(counts, np.arange(len(counts)), -1))
        self.reduction.now = Reduced(len(slots), lists, None)


def pack(counts: BoolArray) -> Bytes:
    return np.packbits(counts, bitorder="little")


def make_view(segment: Segment, better: Sequence[Segment]) -> View:
    if segment.dead is None and not any(other.live for other in better):
        return _view(segment, None, Reduction())
    excluded = np.zeros(segment.size, dtype=bool) if segment.dead is None else segment.dead.copy()
    for other in better:
        _exclude(excluded, segment.slots(other.rows()))
    return _view(segment, excluded, Reduction())


def advance_view(
    view: View, segment: Segment, better: Sequence[Segment], arrived: Mapping[int, IntArray]
) -> View:
    """After a change: `arrived` are the rows that were put since, by space."""
    before = view.segment
    if segment.snapshot is not before.snapshot or segment.tail is not before.tail:
        return make_view(segment, better)
    fresh = segment.tail_rows[len(before.tail_rows) :]
    own = [np.flatnonzero(other.slots(fresh) >= 0) for other in better if len(fresh)]
    theirs = [segment.slots(arrived[o.number]) for o in better if o.number in arrived]
    changed = [*(before.size + places for places in own), *theirs]
    if view.excluded is None and segment.dead is None and not any(map(len, changed)):
        return _view(segment, None, view.reduction)
    excluded = np.zeros(segment.size, dtype=bool)
    if view.excluded is not None:
        excluded[: before.size] = view.excluded
    if segment.dead is not None:
        excluded |= segment.dead
    for slots in changed:
        _exclude(excluded, slots)
    return _view(segment, excluded, view.reduction)


def _exclude(excluded: BoolArray, slots: IntArray) -> None:
    excluded[slots[slots >= 0]] = True


def _view(segment: Segment, excluded: BoolArray | None, reduction: Reduction) -> View:
    base = segment.base
    if excluded is None:
        return View(segment, None, segment.size, base, reduction)
    live_base = base - int(np.count_nonzero(excluded[:base]))
    live_tail = segment.size - base - int(np.count_nonzero(excluded[base:]))
    return View(segment, excluded, live_base + live_tail, live_base, reduction)
