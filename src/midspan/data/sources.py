"""Where the pixels of an image set come from: an array, files on disk, or a cache over either."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from midspan.data.decode import Pixels, decode_image, fit_array, open_checked
from midspan.errors import ImageError
from midspan.image_size import Fit, ImageSize
from midspan.spaces import IntArray, StrArray

T = TypeVar("T")

MAX_THREADS = 8  # Pillow decodes without the interpreter lock; more threads wait for the disk


class ImageSource(Protocol):
    """Where the pixels of an image set are: rows in, uint8 images (B, H, W, C) out."""

    def __len__(self) -> int: ...

    def load(self, rows: IntArray, size: ImageSize) -> Pixels:
        """(B, height, width, channels) uint8; ImageError names the image that cannot be read."""
        ...

    def take(self, rows: IntArray) -> ImageSource:
        """A view of some rows, in this order; no pixels are copied."""
        ...

    def uri(self, row: int) -> str:
        """Where this one image is."""
        ...

    def signature(self) -> str:
        """Changes when the pixels may have changed; the key of a cache on disk."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Images in memory. `picks` are rows of `images`, so that parts share one array."""

    images: Pixels  # (M, H, W, C)
    name: str
    picks: IntArray  # (N,)

    @classmethod
    def of(cls, images: Pixels, *, name: str) -> ArraySource:
        return cls(images=images, name=name, picks=np.arange(len(images)))

    def __len__(self) -> int:
        return len(self.picks)

    def load(self, rows: IntArray, size: ImageSize) -> Pixels:
        try:
            selected: Pixels = self.images[self.picks[rows]]
        except IndexError as error:  # picks may come from outside, as uris of items do
            raise ImageError(f"{self.name}: has {len(self.images)} images ({error})") from error
        if selected.shape[1:] == size.shape:
            return selected
        if selected.shape[1:] == (size.height, size.width, 1):
            return np.repeat(selected, size.channels, axis=3)
        fitted = np.empty((len(selected), *size.shape), dtype=np.uint8)
        for place, image in enumerate(selected):
            fitted[place] = fit_array(image, size)
        return fitted

    def take(self, rows: IntArray) -> ArraySource:
        return ArraySource(images=self.images, name=self.name, picks=self.picks[rows])

    def uri(self, row: int) -> str:
        return f"{self.name}#{self.picks[row]}"

    def signature(self) -> str:
        digest = hashlib.sha256(f"{self.images.shape}".encode())
        digest.update(np.ascontiguousarray(self.images).data)
        digest.update(np.ascontiguousarray(self.picks).data)
        return digest.hexdigest()


def decode_each(
    decode: Callable[[int], Pixels], rows: IntArray, *, shape: tuple[int, int, int]
) -> Pixels:
    """(N, *shape): the image of each row, a batch in parallel."""
    images = np.empty((len(rows), *shape), dtype=np.uint8)

    def put(place: int) -> None:
        images[place] = decode(int(rows[place]))

    if len(rows) == 1:
        put(0)
    else:
        in_threads(put, range(len(rows)))
    return images


@dataclass(frozen=True, eq=False)
class FileSource:
    """Image files, decoded on access, a batch in parallel."""

    root: Path
    names: StrArray  # (N,) relative to root, or absolute

    def __len__(self) -> int:
        return len(self.names)

    def load(self, rows: IntArray, size: ImageSize) -> Pixels:
        def decode(row: int) -> Pixels:
            return decode_image(self.uri(row), size)

        return decode_each(decode, rows, shape=size.shape)

    def take(self, rows: IntArray) -> FileSource:
        return FileSource(root=self.root, names=self.names[rows])

    def uri(self, row: int) -> str:
        return os.path.join(self.root, str(self.names[row]))

    def signature(self) -> str:
        digest = hashlib.sha256()
        for row in range(len(self)):
            path = self.uri(row)
            try:
                status = os.stat(path)
                state = f"{status.st_size} {status.st_mtime_ns}"
            except OSError:  # decoding will say what is wrong
                state = "gone"
            digest.update(f"{path}\0{state}\0".encode())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class CachedSource:
    """Decoded once for one size; any other size comes from the original, never resized twice."""

    images: Pixels  # (M, H, W, C), in memory or mapped from a file
    picks: IntArray  # (N,) rows of images
    fit: Fit
    original: ImageSource  # (N,) the same rows

    def __len__(self) -> int:
        return len(self.picks)

    def load(self, rows: IntArray, size: ImageSize) -> Pixels:
        if self.images.shape[1:] == size.shape and size.fit == self.fit:
            return np.asarray(self.images[self.picks[rows]])
        return self.original.load(rows, size)

    def take(self, rows: IntArray) -> CachedSource:
        return CachedSource(
            images=self.images,
            picks=self.picks[rows],
            fit=self.fit,
            original=self.original.take(rows),
        )

    def uri(self, row: int) -> str:
        return self.original.uri(row)

    def signature(self) -> str:
        return self.original.signature()


@dataclass(frozen=True, eq=False)
class Readable:
    """The part of some rows that could be read, and why the rest could not."""

    images: Pixels  # (B, H, W, C)
    rows: IntArray  # (B,)
    failed: tuple[tuple[int, str], ...]  # row, reason


def load_readable(source: ImageSource, rows: IntArray, size: ImageSize) -> Readable:
    """Like source.load, but an image that cannot be read costs one row instead of the batch."""

    try:
        return Readable(images=source.load(rows, size), rows=rows, failed=())
    except ImageError:
        pass  # rare: find out which ones
    good: list[int] = []
    failed: list[tuple[int, str]] = []
    images = np.empty((len(rows), *size.shape), dtype=np.uint8)
    for row in rows.tolist():
        try:
            images[len(good)] = source.load(np.array([row]), size)[0]
            good.append(row)
        except ImageError as error:
            failed.append((row, str(error).removeprefix(f"{source.uri(row)}: ")))
    return Readable(
        images=images[: len(good)], rows=np.array(good, dtype=np.int64), failed=tuple(failed)
    )


def check_files(root: Path, names: Sequence[str]) -> dict[int, str]:
    """Why some of the files cannot be images, from their headers alone: row → reason."""

    def check(row: int) -> tuple[int, str] | None:
        path = os.path.join(root, names[row])
        try:
            with open_checked(path):
                return None
        except ImageError as error:
            return row, str(error).removeprefix(f"{path}: ")

    return dict(
        selected for selected in in_threads(check, range(len(names))) if selected is not None
    )


def in_threads(work: Callable[[int], T], rows: Iterable[int]) -> list[T]:
    """One pool per call: a shared one would not survive a fork."""
    with ThreadPoolExecutor(max_workers=_threads()) as pool:
        try:
            return list(pool.map(work, rows))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _threads() -> int:
    try:
        return min(MAX_THREADS, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on macOS or Windows
        return min(MAX_THREADS, os.cpu_count() or 1)
