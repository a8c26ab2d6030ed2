"""A block of float32 rows in a file that has no name: memory that the system may take back.

The record is elsewhere, so the file is never synced and goes away with the process, however that
ends. Room on the disk is claimed before rows are written: a full disk is then an error here, and
not the death of the process at a write into the mapping.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from pathlib import Path

import numpy as np

from midspan.errors import StoreError
from midspan.spaces import FloatArray

STEP = 2**22  # bytes claimed at once


class SideFile:
    """`vectors` is (rows, dim); only the first `claim`ed rows may be touched."""

    def __init__(self, folder: Path, *, rows: int, dim: int) -> None:
        self._folder, self._row_bytes = folder, 4 * dim
        self._length = rows * self._row_bytes
        self._claimed = 0
        try:
            self._file = _nameless(folder)
            weakref.finalize(self, os.close, self._file)
            os.truncate(self._file, self._length)
            self._map = mmap.mmap(self._file, self._length)
        except OSError as error:
            raise self._explain(error) from error
        if hasattr(mmap, "MADV_RANDOM"):  # a candidate wants its row, not what lies around it
            self._map.madvise(mmap.MADV_RANDOM)
        numbers = np.frombuffer(self._map, dtype=np.float32)
        self.vectors: FloatArray = numbers.reshape(rows, dim)

    def claim(self, rows: int) -> None:
        """Room on the disk for so many rows, or StoreError."""
        end = rows * self._row_bytes
        if end <= self._claimed:
            return
        end = min(self._length, -(-end // STEP) * STEP)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, self._claimed, end - self._claimed)
            else:
                os.pwrite(self._file, bytes(end - self._claimed), self._claimed)
        except OSError as error:
            raise self._explain(error) from error
        self._claimed = end

    def soon(self, first: int, rows: int) -> None:
        """These rows will be read one after the other: fetch them together."""
        if hasattr(mmap, "MADV_WILLNEED"):
            begin = first * self._row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, begin, (first + rows) * self._row_bytes - begin)

    def _explain(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self._folder}: no file for the true vectors beside the codes ({error.strerror}); "
            "make room there, or turn codes off: midspan gallery quantise … none"
        )


def _nameless(folder: Path) -> int:
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:  # a file system that cannot; the next way says what else may be wrong
            pass
    file, path = tempfile.mkstemp(prefix=".midspan-", suffix=".part", dir=folder)
    os.unlink(path)
    return file
