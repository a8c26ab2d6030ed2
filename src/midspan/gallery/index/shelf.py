"""Vectors in blocks, a row each, with the item and the space that each row belongs to.

Blocks are never moved or copied when the shelf grows, so a million vectors need no second million
while it does. A removed row is a hole (item −1) that the next vector takes. Blocks lie in memory,
or in files without a name in a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt

from midspan.gallery.index.locks import SharedLock
from midspan.gallery.index.side_file import SideFile
from midspan.spaces import FloatArray, IntArray

HOLE = -1
BLOCK_BYTES = 2**28  # of address space; memory is used as rows are written
PART = 2**16  # rows that are looked at in one go

BoolArray = npt.NDArray[np.bool_]


class Shelf:
    def __init__(self, dim: int, *, folder: Path | None = None) -> None:
        self.dim = dim
        self.folder = folder  # of the blocks; None: in memory
        self.block = 2 ** max(
            6, (BLOCK_BYTES // (4 * dim)).bit_length() - 1
        )  # rows, a power of two
        self.blocks: list[FloatArray] = []
        self._files: list[SideFile | None] = []  # of each block; None: in memory
        self.size = 0  # rows in use, holes included
        self._items = np.full(1024, HOLE, dtype=np.int64)
        self._spaces = np.zeros(1024, dtype=np.int32)
        self._holes: list[int] = []

    def __len__(self) -> int:
        return self.size - len(self._holes)

    @property
    def items(self) -> IntArray:
        return self._items[: self.size]

    @property
    def spaces(self) -> npt.NDArray[np.int32]:
        return self._spaces[: self.size]

    @property
    def holes(self) -> int:
        return len(self._holes)

    def add(self, items: IntArray, vectors: FloatArray, *, space: int) -> IntArray:
        """The rows that these items got."""
        reused = [self._holes.pop() for _ in range(min(len(items), len(self._holes)))]
        fresh = len(items) - len(reused)
        rows = np.concatenate(
            [np.array(reused, dtype=np.int64), np.arange(self.size, self.size + fresh)]
        )
        self._reserve(self.size + fresh)
        self.size += fresh
        self.write(rows, items, vectors, space=space)
        return rows

    def write(self, rows: IntArray, items: IntArray, vectors: FloatArray, *, space: int) -> None:
        for block in np.unique(rows // self.block):
            mine = rows // self.block == block
            self.blocks[block][rows[mine] % self.block] = vectors[mine]
        self._items[rows] = items
        self._spaces[rows] = space

    def take(self, rows: IntArray) -> FloatArray:
        """(len(rows), D), a copy."""
        if len(rows) == 0:
            return np.empty((0, self.dim), dtype=np.float32)
        if len(self.blocks) == 1:
            only: FloatArray = self.blocks[0][rows]
            return only
        which, inside = rows // self.block, rows % self.block
        out = np.empty((len(rows), self.dim), dtype=np.float32)
        for block, vectors in enumerate(self.blocks):
            mine = np.flatnonzero(which == block)
            if len(mine):
                out[mine] = vectors[inside[mine]]
        return out

    def remove(self, rows: IntArray) -> None:
        self._items[rows] = HOLE
        self._holes.extend(rows.tolist())

    def parts(self) -> Iterator[tuple[int, FloatArray]]:
        """(first row, (n, D)) of all rows that are in use now; views, not copies."""
        step, size = min(PART, self.block), self.size
        blocks, files = list(self.blocks), list(self._files)
        for first in range(0, size, step):
            inside = first % self.block
            rows = min(step, size - first)
            file = files[first // self.block]
            if file is not None:
                file.soon(inside, rows)
            yield first, blocks[first // self.block][inside : inside + rows]

    def move(self, folder: Path | None, *, lock: SharedLock) -> None:
        """Bring the blocks there, one at a time; searches and writes wait for as long as one takes.

        It is done when somebody changes how the vectors are held.
        """
        for number in count():
            with lock.exclusive:
                if number >= len(self.blocks):
                    self.folder = folder
                    return
                rows = min(self.block, self.size - number * self.block)
                vectors, file = self._new_block(folder, rows)
                vectors[:rows] = self.blocks[number][:rows]
                self.blocks[number], self._files[number] = vectors, file

    def _new_block(self, folder: Path | None, rows: int) -> tuple[FloatArray, SideFile | None]:
        """A block of which so many rows will be written next."""
        if folder is None:
            return np.empty((self.block, self.dim), dtype=np.float32), None
        file = SideFile(folder, rows=self.block, dim=self.dim)
        file.claim(rows)
        return file.vectors, file

    def _reserve(self, size: int) -> None:
        while len(self.blocks) * self.block < size:
            vectors, file = self._new_block(self.folder, 0)
            self.blocks.append(vectors)
            self._files.append(file)
        for number in range(self.size // self.block, len(self.blocks)):
            if (last := self._files[number]) is not None:
                last.claim(min(self.block, size - number * self.block))
        if size > len(self._items):
            capacity = max(size, 2 * len(self._items))
            items = np.full(capacity, HOLE, dtype=np.int64)
            items[: self.size] = self._items[: self.size]
            spaces = np.zeros(capacity, dtype=np.int32)
            spaces[: self.size] = self._spaces[: self.size]
            self._items, self._spaces = items, spaces
