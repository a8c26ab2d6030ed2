"""All vectors that may answer, in memory: live ones by family, the others in reserve.

While an upgrade can still be rolled back, the vectors that lost their place to a better space are
kept in reserve. So a rollback moves vectors inside the memory and asks neither disk nor encoder.

Items and spaces are the store's numbers. Changes are made under `lock.exclusive`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from midspan.gallery.index.family import Family
from midspan.gallery.index.layout import Layout
from midspan.gallery.index.locks import SharedLock
from midspan.gallery.index.shelf import Shelf
from midspan.spaces import FloatArray, IntArray, Space

NOWHERE = -1
NO_SPACE = 0
CHUNK = 32768  # items moved at once
REBUILD = 0.1  # share of the rows that may change at once before the index is made anew

Ints = npt.NDArray[np.int32]


class Mirror:
    def __init__(self, layout: Layout | None = None) -> None:
        self.lock = SharedLock()
        self.layout = layout or Layout()
        self.families: list[Family] = []
        self.tracked: dict[int, Space] = {}
        self.preference: tuple[int, ...] = ()
        self.version = -1  # of the gallery's state that this shows
        self.reserves: dict[int, Shelf] = {}
        self.live_space: Ints = np.zeros(1024, dtype=np.int32)  # by item
        self.live_row: Ints = np.full(1024, NOWHERE, dtype=np.int32)
        self.reserve_row: dict[int, Ints] = {}

    def __len__(self) -> int:
        """Number of items with a live vector."""
        return sum(len(family.shelf) for family in self.families)

    def family_of(self, space: int) -> Family:
        return next(family for family in self.families if space in family.members)

    def lay_out(self, layout: Layout) -> None:
        """Hold vectors so from now on; upkeep brings those that are here to their new place."""
        self.layout = layout
        for family in self.families:
            family.layout = layout

    def misplaced(self) -> list[Shelf]:
        """Shelves that are not where the layout wants them."""
        shelves = [*(family.shelf for family in self.families), *self.reserves.values()]
        return [shelf for shelf in shelves if shelf.folder != self.layout.place]

    # ---- spaces

    def track(self, number: int, space: Space) -> None:
        """From now on vectors of this space are kept here."""
        self.tracked[number] = space
        family = next((family for family in self.families if family.takes(space)), None)
        if family is None:
            family = Family(space, self.layout)
            self.families.append(family)
        family.members[number] = space
        self.reserves[number] = self.layout.shelf(space.dim)
        self.reserve_row[number] = np.full(len(self.live_row), NOWHERE, dtype=np.int32)

    def forget(self, number: int) -> None:
        """A space that is no longer live."""
        family = self.family_of(number)
        del family.members[number], self.tracked[number]
        del self.reserves[number], self.reserve_row[number]
        self.families = [family for family in self.families if family.members]

    def prefer(self, preference: tuple[int, ...], *, keep: Collection[int]) -> None:
        """Another preference list: each item's best vector takes its place; `keep` stay here."""
        self.preference = preference
        best = np.zeros_like(self.live_space)
        for space in preference:
            has = (self.live_space == space) | (self.reserve_row[space] != NOWHERE)
            best[(best == NO_SPACE) & has] = space
        changed = np.flatnonzero(best != self.live_space)
        for family in self.families:
            mine = np.isin(self.live_space[changed], list(family.members))
            if mine.sum() > REBUILD * len(family.shelf):
                family.drop_index()
        for source in np.unique(self.live_space[changed]).tolist():
            for goal in np.unique(best[changed]).tolist():
                chosen = (self.live_space[changed] == source) & (best[changed] == goal)
                items = changed[chosen]
                for start in range(0, len(items), CHUNK):
                    part = items[start : start + CHUNK]
                    self._move(part, source=source, goal=goal, keep=source in keep)
                changed = changed[~chosen]
        for space in list(self.tracked):
            if space not in preference and space not in keep:
                self.forget(space)
            elif len(self.reserves[space]) == 0:
                dim = self.tracked[space].dim
                self.reserves[space] = self.layout.shelf(dim)  # gives the memory back

    def _move(self, items: IntArray, *, source: int, goal: int, keep: bool) -> None:
        """These items' live vector was in `source` (or nowhere) and will be in `goal`."""
        vectors = None if goal == NO_SPACE else self._out_of_reserve(items, goal)
        if source != NO_SPACE and keep:
            rows = self.live_row[items].astype(np.int64)
            self._into_reserve(items, self.family_of(source).shelf.take(rows), source)
        self._place(items, vectors, source=source, goal=goal)

    # ---- vectors

    def gone(self, items: IntArray, *, spaces: Collection[int]) -> None:
        """Deleted or replaced items: their vectors in these spaces count no more."""
        self._grow(items)
        items = np.unique(items)
        for family in self.families:
            mine = items[np.isin(self.live_space[items], list(family.members))]
            if len(mine):
                family.remove(self.live_row[mine].astype(np.int64))
        self.live_space[items], self.live_row[items] = NO_SPACE, NOWHERE
        for space in spaces:
            rows = self.reserve_row[space]
            mine = items[rows[items] != NOWHERE]
            self.reserves[space].remove(rows[mine].astype(np.int64))
            rows[mine] = NOWHERE

    def arrived(self, space: int, items: IntArray, vectors: FloatArray) -> None:
        """Prepared vectors of a tracked space, for items that had none in it."""
        self._grow(items)
        ranks = {number: rank for rank, number in enumerate(self.preference)}
        present = self.live_space[items]
        for source in np.unique(present).tolist():
            mine = present == source
            if space not in ranks or (source in ranks and ranks[source] <= ranks[space]):
                self._into_reserve(items[mine], vectors[mine], space)
                continue
            if source != NO_SPACE:
                rows = self.live_row[items[mine]].astype(np.int64)
                former = self.family_of(source).shelf.take(rows)
                self._into_reserve(items[mine], former, source)
            self._place(items[mine], vectors[mine], source=source, goal=space)

    def _place(
        self, items: IntArray, vectors: FloatArray | None, *, source: int, goal: int
    ) -> None:
        rows = self.live_row[items].astype(np.int64)
        left = self.family_of(source) if source != NO_SPACE else None
        entered = self.family_of(goal) if goal != NO_SPACE else None
        if entered is None or vectors is None:
            assert left is not None
            left.remove(rows)
            self.live_row[items] = NOWHERE
        elif entered is left:
            entered.write(rows, items, vectors, space=goal)
        else:
            if left is not None:
                left.remove(rows)
            self.live_row[items] = entered.add(items, vectors, space=goal)
        self.live_space[items] = goal

    def _into_reserve(self, items: IntArray, vectors: FloatArray, space: int) -> None:
        self.reserve_row[space][items] = self.reserves[space].add(items, vectors, space=space)

    def _out_of_reserve(self, items: IntArray, space: int) -> FloatArray:
        rows = self.reserve_row[space][items].astype(np.int64)
        vectors = self.reserves[space].take(rows)
        self.reserves[space].remove(rows)
        self.reserve_row[space][items] = NOWHERE
        return vectors

    def _grow(self, items: IntArray) -> None:
        size = int(items.max(initial=0)) + 1
        before = len(self.live_row)
        if size <= before:
            return
        capacity = max(size, 2 * before)
        self.live_space = _longer(self.live_space, capacity, NO_SPACE)
        self.live_row = _longer(self.live_row, capacity, NOWHERE)
        for space, rows in self.reserve_row.items():
            self.reserve_row[space] = _longer(rows, capacity, NOWHERE)


def _longer(array: Ints, size: int, rest: int) -> Ints:
    longer = np.full(size, rest, dtype=np.int32)
    longer[: len(array)] = array
    return longer
