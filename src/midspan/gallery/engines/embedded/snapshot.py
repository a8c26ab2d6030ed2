"""Snapshots: immutable files next to the gallery that every process maps, so that they share pages.

    shop.midspan-index/
      1.lock                 held while a process builds a snapshot of space 1
      1-8f0c…/               one snapshot; the gallery file says by its token which one counts
        vectors.f32          (n, D) as they are compared, by rising row
        rows.i64             (n,) the row of each
        lists.faiss          the index over the places 0 … n − 1
        meta.json            lengths and checksums; written last

The record is the SQLite file: a snapshot that is missing or damaged is built again. Whatever a
killed process leaves here is removed by the next builder.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.gallery.engines.embedded.ivf import CODES, Ivf
from midspan.gallery.engines.embedded.tables import SnapshotRecord
from midspan.spaces import FloatArray, IntArray, Space

VECTORS, ROWS, LISTS, META = "vectors.f32", "rows.i64", "lists.faiss", "meta.json"
HEAD = 2**20  # bytes of each file that are checked whenever it is opened
BLOCK = 2**22


class DamagedSnapshot(Exception):
    """Files that are missing, cut off or changed."""


class IndexSnapshot:
    """The files of one snapshot, mapped."""

    def __init__(self, folder: Path, number: int, record: SnapshotRecord, space: Space) -> None:
        self.record = record
        self._folder = folder / f"{number}-{record.token}"
        try:
            self._meta: dict[str, dict[str, int]] = json.loads((self._folder / META).read_text())
            for name in (VECTORS, ROWS, LISTS):
                self._check(name, whole=name == ROWS)
            quiet = record.quantise != "none"  # leave the vectors on disk until they are asked for
            self.vectors: FloatArray = _mapped(self._folder / VECTORS, quiet, np.float32).reshape(
                record.rows, space.dim
            )
            self.rows: IntArray = _mapped(self._folder / ROWS, False, np.int64)
            codes = CODES[record.quantise](space.dim)
            path = self._folder / LISTS
            self.ivf = Ivf.mapped(path, codes=codes, metric=space.metric)
            self.blank = Ivf.blank(path, codes=codes, metric=space.metric)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise DamagedSnapshot(f"{self._folder.name}: {error}") from error
        if not (len(self.rows) == len(self.vectors) == len(self.ivf) == record.rows):
            raise DamagedSnapshot(f"{self._folder.name}: expected {record.rows} rows")

    def verify(self) -> None:
        """Read every byte; raises DamagedSnapshot."""
        for name in (VECTORS, ROWS, LISTS):
            self._check(name, whole=True)

    def _check(self, name: str, *, whole: bool) -> None:
        path, expected = self._folder / name, self._meta[name]
        try:
            size = path.stat().st_size
            if size != expected["bytes"]:
                raise DamagedSnapshot(f"{path}: {size} bytes, expected {expected['bytes']}")
            if _checksum(path, HEAD) != expected["head"]:
                raise DamagedSnapshot(f"{path}: its beginning was changed")
            if whole and _checksum(path, size) != expected["crc"]:
                raise DamagedSnapshot(f"{path}: its content was changed")
        except OSError as error:
            raise DamagedSnapshot(f"{path}: {error.strerror}") from error


def _mapped(path: Path, quiet: bool, kind: npt.DTypeLike) -> npt.NDArray[Any]:
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if quiet and hasattr(mmap, "MADV_RANDOM"):  # a candidate needs its row, not the neighbours
        mapping.madvise(mmap.MADV_RANDOM)
    elif hasattr(mmap, "MADV_WILLNEED"):
        mapping.madvise(mmap.MADV_WILLNEED)
    return np.frombuffer(mapping, dtype=kind)


class SnapshotWriter:
    """A folder that gets its name when it is whole. Disk space is claimed first: a full disk
    is then an error here, and not the death of the process at a write into the mapping."""

    def __init__(self, folder: Path, number: int, rows: IntArray, dim: int) -> None:
        self.token = secrets.token_hex(8)
        self._place = folder / f"{number}-{self.token}"
        self._part = folder / f"{number}-{self.token}.part"
        self.rows = rows
        self._part.mkdir(parents=True)
        try:
            (self._part / ROWS).write_bytes(np.ascontiguousarray(rows, dtype="<i8").tobytes())
            with (self._part / VECTORS).open("wb+") as file:
                _claim(file.fileno(), len(rows) * dim * 4)
                self._mapping = mmap.mmap(file.fileno(), len(rows) * dim * 4)
        except BaseException:
            self.discard()
            raise
        self.vectors: FloatArray = np.frombuffer(self._mapping, dtype=np.float32).reshape(-1, dim)

    def finish(self, ivf: Ivf) -> None:
        self._mapping.flush()
        lists = self._part / LISTS
        ivf.save(lists)
        meta = {}
        for name in (VECTORS, ROWS, LISTS):
            path = self._part / name
            _sync(path)
            size = path.stat().st_size
            head, crc = _checksum(path, HEAD), _checksum(path, size)
            meta[name] = {"bytes": size, "head": head, "crc": crc}
        (self._part / META).write_text(json.dumps(meta))
        _sync(self._part / META)
        _sync(self._part)
        self._part.rename(self._place)
        _sync(self._place.parent)

    def discard(self) -> None:
        shutil.rmtree(self._part, ignore_errors=True)
        shutil.rmtree(self._place, ignore_errors=True)


def remove_others(folder: Path, number: int, *, keep: str | None) -> None:
    """All snapshots of a space but this one; only its builder may do that."""
    for path in folder.glob(f"{number}-*"):
        if path.name != f"{number}-{keep}":
            shutil.rmtree(path, ignore_errors=True)


def remove_spaces(folder: Path, *, known: set[int]) -> None:
    """Whatever belongs to spaces that are no more."""
    for path in folder.glob("*-*"):
        if path.name.split("-")[0] not in {str(number) for number in known}:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("*.lock"):
        if path.stem not in {str(number) for number in known}:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()  # if nothing is left


@contextmanager
def building(folder: Path, number: int) -> Iterator[None]:
    """One builder of a space at a time, over all processes; the lock goes with its process."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _claim(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    for start in range(0, size, BLOCK):  # pragma: no cover - systems without it
        os.pwrite(file, bytes(min(BLOCK, size - start)), start)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _checksum(path: Path, size: int) -> int:
    value = 0
    with path.open("rb") as file:
        while size > 0 and (block := file.read(min(BLOCK, size))):
            value, size = zlib.crc32(block, value), size - len(block)
    return value
