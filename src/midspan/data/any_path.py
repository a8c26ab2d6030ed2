"""Images from a path, by what is there: a folder, a CSV list, an .npz file or tar shards."""

from __future__ import annotations

from pathlib import Path

from midspan.data.from_csv import csv
from midspan.data.from_folder import folder
from midspan.data.from_npz import npz
from midspan.data.images import ImageSet
from midspan.data.webdataset.dataset import webdataset
from midspan.errors import DataError


def open_images(path: str | Path, *, strict: bool = False) -> ImageSet:
    """A folder (of class folders), a `.csv`, an `.npz`, or tar shards (`train-{000..003}.tar`).

    strict: a broken file is an error.

    Args:
        path: Where the images are.
        strict: Whether a broken file is an error.

    Returns:
        The images.

    Raises:
        DataError: There is nothing, or nothing that images can be read from.
        ImageError: A broken image, if `strict`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> import midspan as ms
        >>> here = Path(tempfile.mkdtemp())
        >>> for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        ...     (here / name).parent.mkdir(exist_ok=True)
        ...     Image.new("RGB", (32, 32)).save(here / name)
        >>> len(ms.data.open_images(here))
        3
    """
    path = Path(path)
    if path.suffix.lower() == ".tar" and not path.is_dir():
        return webdataset(path, strict=strict)
    if path.is_dir():
        return folder(path, strict=strict)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if path.suffix.lower() == ".csv":
        return csv(path, strict=strict)
    if path.suffix.lower() == ".npz":
        return npz(path)
    raise DataError(
        f"{path}: images are read from a folder, a .csv list, an .npz file or .tar shards"
    )
