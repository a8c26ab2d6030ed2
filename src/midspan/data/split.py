"""Parts of an image set by class, and lists of them as CSV files that `csv` reads again."""

from __future__ import annotations

import csv as csv_format
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from midspan.atomic_write import atomic_write
from midspan.data.images import ImageSet
from midspan.data.sources import FileSource
from midspan.errors import ConfigError, DataError
from midspan.labels import some_names


def in_classes(images: ImageSet, classes: str) -> npt.NDArray[np.bool_]:
    """Which images are of these classes.

    Args:
        images: A labelled set.
        classes: Names, or places in the order of `images.class_names` from 1 on, with ranges:
            "1-100", "cat,dog", "1-3,7". A name wins over a place.

    Returns:
        (N,) True for these images.

    Raises:
        ConfigError: A class that is not there, or a range that is none.
        DataError: The set has no labels.

    Example:
        >>> import numpy as np
        >>> from midspan.data import ImageSet, in_classes
        >>> from midspan.data.sources import ArraySource
        >>> pixels = ArraySource.of(np.zeros((3, 2, 2, 1), np.uint8), name="pixels")
        >>> pets = ImageSet(np.array(["a", "b", "c"]), pixels, np.array(["cat", "dog", "cow"]))
        >>> in_classes(pets, "1-2").tolist()
        [True, False, True]
    """
    if images.labels is None:
        raise DataError("these images have no labels; use class folders or a CSV with labels")
    names = images.class_names
    chosen: set[str] = set()
    for part in filter(None, (one.strip() for one in classes.split(","))):
        first, _, last = part.partition("-")
        if part in names:
            chosen.add(part)
        elif first.isdigit() and (last.isdigit() or not last) and part[-1] != "-":
            low, high = int(first), int(last or first)
            if not 1 <= low <= high <= len(names):
                raise ConfigError(f"classes {part}: expected places from 1 to {len(names)}")
            chosen |= set(names[low - 1 : high])
        else:
            raise ConfigError(
                f"classes {part!r}: expected a name or a range such as 1-100; there "
                f"are {some_names(names)}"
            )
    if not chosen:
        raise ConfigError("no classes were named; expected a range such as 1-100, or names")
    mask: npt.NDArray[np.bool_] = np.isin(images.labels, sorted(chosen))
    return mask


def save_csv(images: ImageSet, path: str | Path) -> Path:
    """Write a list of image files: path, label and split, as `csv` reads it.

    Args:
        images: A set of files: from a folder or a CSV.
        path: The list; paths in it are relative to its folder where the images are below it.

    Returns:
        The path.

    Raises:
        DataError: The images are not files of their own.

    Example:
        >>> import pathlib, tempfile
        >>> from PIL import Image
        >>> from midspan.data import csv, folder, save_csv
        >>> with tempfile.TemporaryDirectory() as root:
        ...     pathlib.Path(root, "cat").mkdir()
        ...     Image.new("RGB", (4, 4)).save(pathlib.Path(root, "cat", "1.png"))
        ...     written = save_csv(folder(root), pathlib.Path(root, "list.csv"))
        ...     csv(written)
        ImageSet(1 images; 1 classes)
    """
    path = Path(path)
    if not isinstance(images.source, FileSource):
        raise DataError("only images that are files can be listed: from a folder or a CSV")
    base = path.resolve().parent
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv_format.writer(file)
        columns = ["path"] + ["label"] * (images.labels is not None)
        writer.writerow(columns + ["split"] * (images.split is not None))
        for row in range(len(images)):
            real = Path(os.path.abspath(images.source.uri(row)))
            listed = real.relative_to(base) if real.is_relative_to(base) else real
            values = [listed.as_posix()]
            if images.labels is not None:
                values.append(str(images.labels[row]))
            if images.split is not None:
                values.append("test" if images.split[row] else "train")
            writer.writerow(values)
    return path
