"""Image sets in one `.npz` file: images (N, H, W, C) uint8, labels (N,), split (N,), columns."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.atomic_write import atomic_write
from midspan.data.images import ImageSet
from midspan.data.sources import ArraySource, CachedSource
from midspan.errors import DataError, FormatError
from midspan.labels import ClassNames
from midspan.spaces import StrArray

_OWN = ("images", "labels", "split", "ids", "class_name")


def npz(path: str | Path) -> ImageSet:
    """Read an image set. Arrays with one value an image become columns, the rest is ignored.

    Labels are names, or whole numbers: with `class_name` (C,) label 7 is the class of its row 7,
    without it the class '7'. Without `ids` an id is file and row: 'omniglot32#17'.

    Args:
        path: The file.

    Returns:
        The images, labels, split and columns.

    Raises:
        FormatError: Not an image set, or a damaged one.
        DataError: Labels that do not fit the images.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> import midspan as ms
        >>> path = tempfile.mkdtemp() + "/few.npz"
        >>> np.savez(path, images=np.zeros((2, 8, 8, 3), np.uint8), labels=np.array(["cat", "dog"]))
        >>> ms.data.npz(path).labels.tolist()
        ['cat', 'dog']
    """
    path = Path(path)
    arrays = _read(path)
    images = _checked_images(path, arrays)
    count = len(images)
    columns = {
        name: array
        for name, array in arrays.items()
        if name not in _OWN and array.ndim and len(array) == count
    }
    labels, class_names = _named(path, arrays.get("labels"), arrays.get("class_name"), count)
    ids = arrays.get("ids")
    if ids is None:
        ids = np.char.add(f"{path.stem}#", np.arange(count).astype(np.str_))
    try:
        return ImageSet(
            ids=ids,
            source=ArraySource.of(images, name=str(path)),
            labels=labels,
            class_names=class_names,
            split=arrays.get("split"),
            columns=columns,
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def save_npz(images: ImageSet, path: str | Path) -> Path:
    """Write an image set as one file, which appears complete or not at all.

    Decode a set of files first: save_npz(folder("a").cached(ImageSize(64, 64, 3)), "a.npz").

    Args:
        images: The set; files must be decoded to one size.
        path: The file to write.

    Returns:
        The path.

    Raises:
        DataError: The images are files of different sizes.

    Example:
        >>> import tempfile
        >>> import midspan as ms
        >>> path = ms.data.save_npz(ms.data.digits(), tempfile.mkdtemp() + "/digits.npz")
        >>> len(ms.data.npz(path))
        1797
    """
    path = Path(path)
    source = images.source
    if not isinstance(source, ArraySource | CachedSource):
        raise DataError(
            f"{path}: these images are files of different sizes; decode them first with "
            ".cached(ImageSize(…))"
        )
    arrays = {"images": source.images[source.picks], "ids": images.ids, **images.columns}
    if images.labels is not None:
        arrays |= {"labels": images.labels, "class_name": np.array(images.class_names)}  # an order
    if images.split is not None:
        arrays["split"] = images.split
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return path


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    if not path.is_file():
        raise FormatError(f"{path}: no such file; expected an image set (.npz)")
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FormatError:
        raise
    except Exception as error:  # zipfile, zlib, numpy and OS each have their own
        raise FormatError(f"{path}: not a readable .npz file ({error})") from error


def _check_members(path: Path, archive: zipfile.ZipFile) -> None:
    """From the headers alone, before memory is allocated: a small file can declare a huge array."""
    total = 0
    for member in archive.infolist():
        with archive.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read(stream)
            start = stream.tell()
        name = member.filename.removesuffix(".npy")
        if dtype.hasobject:
            raise FormatError(
                f"{path}: {name!r} holds Python objects, which could run code when read; "
                "save it as numbers or as text (dtype '<U…')"
            )
        promised = dtype.itemsize
        for side in shape:
            promised *= side
        if start + promised != member.file_size:
            raise FormatError(
                f"{path}: {name!r} says {dtype}{shape}, {promised:,} bytes, but holds "
                f"{member.file_size - start:,}; the file is damaged"
            )
        total += promised
    if total > _memory():
        raise FormatError(
            f"{path}: unpacks to {total / 2**30:,.1f} GiB, more than this machine's memory "
            f"({_memory() / 2**30:,.1f} GiB); use a folder of images instead"
        )


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 64 * 2**30


def _checked_images(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    images = arrays.get("images")
    if images is None:
        hint = "; these are embeddings, not images" if "vectors" in arrays else ""
        raise FormatError(
            f"{path}: expected 'images' (N, H, W, C) uint8, got {sorted(arrays)}{hint}"
        )
    if images.ndim == 3:  # grey without a channel axis
        images = images[..., None]
    if images.dtype != np.uint8:
        hint = "; scale them to 0 … 255 and save them as uint8" if images.dtype.kind == "f" else ""
        raise FormatError(f"{path}: expected uint8 images, got {images.dtype}{hint}")
    if images.ndim != 4 or images.shape[3] not in (1, 3, 4) or 0 in images.shape[1:]:
        raise FormatError(
            f"{path}: expected images (N, H, W, C) with 1, 3 or 4 channels, got shape "
            f"{arrays['images'].shape}"
        )
    return images


def _named(
    path: Path,
    given: npt.NDArray[Any] | None,
    names: npt.NDArray[Any] | None,
    count: int,
) -> tuple[StrArray | None, tuple[str, ...]]:
    """The name of each image's class, and the order of the classes if the file has one."""
    if given is None:
        return None, ()
    if given.shape != (count,) or given.dtype.kind not in "biuU":
        raise DataError(
            f"{path}: expected one whole number or name as the label of each of the {count} "
            f"images, got {given.dtype}{given.shape}"
        )
    if names is None or names.ndim != 1:
        return given.astype(np.str_), ()
    classes = ClassNames(tuple(names.astype(np.str_).tolist()))
    if given.dtype.kind == "U":
        known = set(classes.names)
        return given, classes.names if known.issuperset(given.tolist()) else ()
    if len(given) and (given.min() < 0 or given.max() >= len(names)):
        raise DataError(
            f"{path}: {len(names)} class names, but labels from {given.min()} to {given.max()}"
        )
    return classes.decode(given.astype(np.int64)), classes.names
