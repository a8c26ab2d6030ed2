"""Image sets in a folder: a folder of class folders, or just images."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from midspan.data.decode import SUFFIXES
from midspan.data.images import TEST, TRAIN, ImageSet, Skipped, from_files
from midspan.errors import DataError, ImageError
from midspan.labels import ordered

_SPLITS = {"train": TRAIN, "test": TEST, "val": TEST, "validation": TEST}


def folder(path: str | Path, *, strict: bool = False) -> ImageSet:
    """Read an image set from a folder; sorted by name, an id is the path inside the folder.

    - `cat/1.jpg`, `dog/2.jpg`: the first folder is the class (deeper ones do not matter);
    - `train/cat/1.jpg`, `test/dog/2.jpg`: the same, with a split (`val` and `validation` are
      names for test);
    - `1.jpg`, `2.jpg`: images without labels.

    Files that are not images by their ending, and hidden ones, are ignored. Images with a broken
    header are left out and listed in `.skipped`, or an ImageError if `strict`; what only fails
    when it is decoded is found by `.cached()` or `.load()`. Links to folders are followed, each
    real folder once.

    Args:
        path: The folder.
        strict: Whether a broken image is an error.

    Returns:
        The images, in the order of their names.

    Raises:
        DataError: There is no such folder.
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
        >>> images = ms.data.folder(here)
        >>> images.ids.tolist(), images.class_names
        (['cat/1.png', 'cat/2.png', 'dog/1.png'], ('cat', 'dog'))
    """
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; expected a folder of images or of class folders")
    walk = _Walk(root=root)
    names = sorted(walk.images(root))
    if not names:
        raise DataError(f"{root}: no images in it ({walk.seen()}); expected {', '.join(SUFFIXES)}")
    if strict and walk.skipped:
        raise ImageError(f"{root}/{walk.skipped[0]}")
    classes, split = _classes(root, names)
    files, kept = from_files(root, names, strict=strict)
    files = replace(
        files,
        split=None if split is None else np.array(split, dtype=np.uint8)[kept],
        skipped=tuple(walk.skipped) + files.skipped,
    )
    if classes is None:
        return files
    labels = np.array([classes[row] for row in kept])
    return replace(files, labels=labels, class_names=tuple(ordered(set(classes))))


def _classes(root: Path, names: list[str]) -> tuple[list[str] | None, list[int] | None]:
    """Class and split of each image from the folders it is in."""
    parts = [name.split("/") for name in names]
    loose = [name for name, steps in zip(names, parts, strict=True) if len(steps) == 1]
    if len(loose) == len(names):
        return None, None
    if loose:
        raise DataError(
            f"{root}: {len(loose)} images (first {loose[0]!r}) are next to class folders, so "
            "their class is unknown; move them into a class folder, or elsewhere"
        )
    tops = {steps[0] for steps in parts}
    if not ("train" in tops and len(tops) > 1 and tops <= _SPLITS.keys()):
        return [steps[0] for steps in parts], None
    if len(tops) > 2:
        raise DataError(
            f"{root}: has {', '.join(sorted(tops))}; an image set has two parts, train and test: "
            "move one of them away"
        )
    if short := next((n for n, steps in zip(names, parts, strict=True) if len(steps) == 2), None):
        raise DataError(f"{root}: expected train/<class>/<image>, got {short!r}")
    return [steps[1] for steps in parts], [_SPLITS[steps[0]] for steps in parts]


@dataclass
class _Walk:
    """Finds image files under a folder, and records what it skips."""

    root: Path
    skipped: list[Skipped] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    visited: set[tuple[int, int]] = field(default_factory=set)

    def images(self, at: Path) -> Iterator[str]:
        try:
            status = at.stat()
            entries = sorted(os.scandir(at), key=lambda entry: entry.name)
        except OSError as error:
            self.skip(at, f"cannot be read ({error.strerror})")
            return
        if (status.st_dev, status.st_ino) in self.visited:
            self.skip(at, "a link to a folder that was already read")
            return
        self.visited.add((status.st_dev, status.st_ino))
        for entry in entries:
            place = Path(entry.path)
            ending = place.suffix.lower()
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                continue
            if place.is_dir():
                yield from self.images(place)
                continue
            self.endings[ending or "no ending"] += 1
            if ending in SUFFIXES:
                name = place.relative_to(self.root).as_posix()
                if _is_text(name):
                    yield name
                else:
                    self.skip(place, "its name is not valid UTF-8; rename it")

    def skip(self, place: Path, reason: str) -> None:
        name = place.relative_to(self.root).as_posix()
        self.skipped.append(
            Skipped(
                path=name.encode(errors="surrogateescape").decode(errors="replace"), reason=reason
            )
        )

    def seen(self) -> str:
        if not self.endings:
            return "it is empty"
        return "only " + ", ".join(f"{n} {ending}" for ending, n in self.endings.most_common(5))


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
