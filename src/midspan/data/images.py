"""Image sets: ids, where the pixels are, labels, split and further columns, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.data.cache import CACHE_LIMIT, decode_all
from midspan.data.decode import Pixels
from midspan.data.sources import (
    ArraySource,
    CachedSource,
    FileSource,
    ImageSource,
    Readable,
    check_files,
    load_readable,
)
from midspan.errors import DataError, ImageError
from midspan.image_size import Fit, ImageSize
from midspan.labels import ClassNames, as_names
from midspan.spaces import Column, IntArray, StrArray

__all__ = ["Fit", "ImageSet", "ImageSource", "Skipped"]

TRAIN, TEST = 0, 1

Rows = slice | npt.NDArray[Any] | Sequence[int]


@dataclass(frozen=True, slots=True)
class Skipped:
    """An image that is in the folder or list but not in the set."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, eq=False)
class ImageSet:
    """N images with their ids, labels and columns. Parts of a set share its pixels.

    A label is the name of the image's class. `class_names` is the order in which a training loop
    numbers the classes, the same in the whole set and in each of its parts; by default the names
    that occur, sorted.

    Example:
        >>> import midspan as ms
        >>> images = ms.data.digits()
        >>> len(images), len(images.train), sorted(set(images.test.labels.tolist()))
        (1797, 1264, ['7', '8', '9'])
    """

    ids: StrArray  # (N,) unique
    source: ImageSource
    labels: StrArray | None = None  # (N,) names
    class_names: tuple[str, ...] = ()
    split: npt.NDArray[np.uint8] | None = None  # (N,) 0 train, 1 test
    columns: Mapping[str, Column] = field(default_factory=dict)  # each (N, …)
    skipped: tuple[Skipped, ...] = ()
    strict: bool = False  # an image that fails to decode is an error, not a skipped row
    streamed: bool = False  # decoded on each access: too many to decode in advance

    def __post_init__(self) -> None:
        ids = np.asarray(self.ids).astype(np.str_, copy=False)
        count = len(self.source)
        if ids.shape != (count,):
            raise DataError(f"ids of shape {ids.shape} for {count} images; give each image one id")
        _check_unique(ids)
        object.__setattr__(self, "ids", ids)
        if self.labels is not None:
            labels = as_names(self.labels)
            if len(labels) != count:
                raise DataError(f"{len(labels)} labels for {count} images; give each one label")
            classes = ClassNames(self.class_names) if self.class_names else ClassNames.of(labels)
            classes.encode(labels)  # a label that is no class is an error
            object.__setattr__(self, "labels", labels)
            object.__setattr__(self, "class_names", classes.names)
        if self.split is not None:
            object.__setattr__(self, "split", _checked_split(self.split, count=count))
        columns = {name: np.asarray(column) for name, column in self.columns.items()}
        for name, column in columns.items():
            if column.ndim == 0 or len(column) != count:
                raise DataError(f"column {name!r} has shape {column.shape} for {count} images")
        object.__setattr__(self, "columns", columns)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        parts = [f"{len(self):,} images"]
        if self.labels is not None:
            parts.append(f"{len(set(self.labels.tolist())):,} classes")
        if self.split is not None:
            test = int(self.split.sum())
            parts.append(f"{len(self) - test:,} train / {test:,} test")
        if self.columns:
            parts.append(f"columns {', '.join(self.columns)}")
        if self.skipped:
            parts.append(f"{len(self.skipped):,} skipped")
        return f"ImageSet({'; '.join(parts)})"

    def __getitem__(self, rows: Rows) -> ImageSet:
        """A part of the rows: slice, mask or indices. Labels and class names stay as they are."""
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.size == 0:  # an empty list would come as float64
                rows = rows.astype(np.int64)
        picked = np.atleast_1d(np.arange(len(self))[rows])
        return replace(
            self,
            ids=self.ids[picked],
            source=self.source.take(picked),
            labels=None if self.labels is None else self.labels[picked],
            split=None if self.split is None else self.split[picked],
            columns={name: column[picked] for name, column in self.columns.items()},
        )

    @property
    def train(self) -> ImageSet:
        return self._part(TRAIN)

    @property
    def test(self) -> ImageSet:
        return self._part(TEST)

    def _part(self, which: int) -> ImageSet:
        if self.split is None:
            raise DataError(
                "this image set has no split into train and test; use all of it, add a 'split' "
                "column (.npz, CSV), or put the class folders under train/ and test/"
            )
        return self[self.split == which]

    def uri(self, row: int) -> str:
        """Where one image is: a path, 'file.npz#row' or 'shard.tar#name'."""
        return self.source.uri(row)

    def load(
        self,
        rows: IntArray | Sequence[int],
        size: ImageSize,
    ) -> Pixels:
        """(B, height, width, channels) uint8. An unreadable file is an ImageError with its name."""
        return self.source.load(np.asarray(rows, dtype=np.int64), size)

    def load_readable(
        self,
        rows: IntArray | Sequence[int],
        size: ImageSize,
    ) -> Readable:
        """Like load, but unreadable images are left out: `.images`, `.rows`, `.failed`."""
        got = load_readable(self.source, np.asarray(rows, dtype=np.int64), size)
        if got.failed and self.strict:
            row, reason = got.failed[0]
            raise ImageError(f"{self.uri(row)}: {reason}")
        return got

    def cached(
        self,
        size: ImageSize,
        *,
        limit: int = CACHE_LIMIT,
        folder: str | Path | None = None,
        progress: bool = False,
    ) -> ImageSet:
        """Decode every image once, in parallel; what cannot be decoded moves to `skipped`.

        Up to `limit` bytes are kept in memory, more in a file under `folder` (midspan's cache
        folder) that later runs find again.
        """
        held = self.source
        if isinstance(held, ArraySource | CachedSource):
            same = held.images.shape[1:] == size.shape
            if same and (isinstance(held, ArraySource) or held.fit == size.fit):
                return self
        got = decode_all(
            self.source,
            size,
            strict=self.strict,
            limit=limit,
            folder=folder,
            show=progress,
        )
        kept = self[got.rows]
        source = CachedSource(
            images=got.images, picks=np.arange(len(kept)), fit=size.fit, original=kept.source
        )
        more = tuple(Skipped(path=str(self.ids[row]), reason=reason) for row, reason in got.failed)
        return replace(kept, source=source, skipped=self.skipped + more)


def from_files(root: Path, names: Sequence[str], *, strict: bool) -> tuple[ImageSet, list[int]]:
    """The files whose header is that of an image, and their indices in `names`.

    The others are skipped with the reason, or an ImageError if `strict`.
    """
    failed = check_files(root, names)
    if failed and strict:
        row, reason = next(iter(failed.items()))
        raise ImageError(f"{root / names[row]}: {reason}")
    if len(failed) == len(names):
        raise DataError(
            f"{root}: none of {len(names)} images can be read, first {names[0]}: {failed[0]}"
        )
    kept = [row for row in range(len(names)) if row not in failed]
    ids = np.array([names[row] for row in kept])
    files = ImageSet(
        ids=ids,
        source=FileSource(root=root, names=ids),
        skipped=tuple(Skipped(path=names[row], reason=why) for row, why in failed.items()),
        strict=strict,
    )
    return files, kept


def _check_unique(ids: StrArray) -> None:
    if len(set(ids.tolist())) == len(ids):  # much faster than sorting text
        return
    ordered = np.sort(ids)
    doubled = ordered[1:][ordered[1:] == ordered[:-1]]
    raise DataError(
        f"expected unique ids, got {len(doubled)} duplicates, first {str(doubled[0])!r}"
    )


def _checked_split(split: npt.NDArray[Any], *, count: int) -> npt.NDArray[np.uint8]:
    split = np.asarray(split)
    if split.shape != (count,):
        raise DataError(f"split of shape {split.shape} for {count} images; give each 0 or 1")
    known = np.isin(split, (TRAIN, TEST)) if split.dtype.kind in "biu" else np.zeros(count, bool)
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise DataError(
            f"split: expected 0 (train) or 1 (test), got {split[row].item()!r} in row {row}"
        )
    return split.astype(np.uint8, copy=False)
