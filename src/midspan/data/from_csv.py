"""Image sets listed in a CSV file, with open-metric-learning's columns."""

from __future__ import annotations

import csv as csv_format
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from midspan.data.images import TEST, TRAIN, ImageSet, from_files
from midspan.errors import DataError, FormatError
from midspan.labels import ordered
from midspan.spaces import Column

_SPLITS = {"train": TRAIN, "validation": TEST, "val": TEST, "test": TEST}
_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0", "")
_TRUTHS = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}
_FLAGS = ("is_query", "is_gallery")
_BOXES = {"x_1", "x_2", "y_1", "y_2"}


def csv(path: str | Path, *, root: str | Path | None = None, strict: bool = False) -> ImageSet:
    """Read a list of images: `path`, and where given `label`, `split`, `is_query`, `is_gallery`.

    `split` is train or validation (val and test mean the same); the flags may be empty, which is
    false. Labels are any text, kept as it is: '002' and '2' are two classes. Further columns are
    kept as text. An id is the path as written.

    Relative paths start at `root`, by default the CSV's own folder, and may not lead out of it
    with '..': name a higher `root` instead. Absolute paths are taken as they are, so read a
    list from an untrusted source only where all your images may be seen. Missing or broken images
    are skipped and listed, or an ImageError if `strict`.

    Args:
        path: The list.
        root: Where relative paths start; by default the folder of the list.
        strict: Whether a missing or broken image is an error.

    Returns:
        The images, in the order of the list.

    Raises:
        DataError: There is no such list, or it has no column `path`.
        ImageError: A missing or broken image, if `strict`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> import midspan as ms
        >>> here = Path(tempfile.mkdtemp())
        >>> for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
        ...     (here / name).parent.mkdir(exist_ok=True)
        ...     Image.new("RGB", (32, 32)).save(here / name)
        >>> lines = ["path,label", "cat/1.png,cat", "dog/1.png,dog"]
        >>> _ = (here / "list.csv").write_text("\\n".join(lines))
        >>> ms.data.csv(here / "list.csv").labels.tolist()
        ['cat', 'dog']
    """
    table = _read(Path(path))
    names = table.paths()
    base = Path(root) if root is not None else Path(path).parent
    files, kept = from_files(base, names, strict=strict)
    columns: dict[str, Column] = {}
    for title, values in table.columns.items():
        if title in _FLAGS:
            columns[title] = np.array(table.translated(title, _TRUTHS))[kept]
        elif title not in ("path", "label", "split"):
            columns[title] = np.array(values)[kept]
    split = None
    if any(table.columns.get("split", ())):
        split = np.array(table.translated("split", _SPLITS), dtype=np.uint8)[kept]
    files = replace(files, split=split, columns=columns)
    labels = table.columns.get("label")
    if labels is None:
        return files
    table.refuse_empty("label")
    class_names = tuple(ordered(set(labels)))
    return replace(files, labels=np.array(labels)[kept], class_names=class_names)


@dataclass(frozen=True)
class _Table:
    path: Path
    lines: list[int]  # where each row ends in the file, for messages
    columns: dict[str, list[str]]

    def paths(self) -> list[str]:
        self.refuse_empty("path")
        first: dict[str, int] = {}
        for line, name in zip(self.lines, self.columns["path"], strict=True):
            where = f"{self.path}, line {line}"
            if "\0" in name:
                raise DataError(f"{where}: the path holds a zero byte: {name!r}")
            if not Path(name).is_absolute() and ".." in Path(name).parts:
                raise DataError(
                    f"{where}: {name!r} leads out of the folder; pass root=, or an absolute path"
                )
            if name in first:
                raise DataError(f"{where}: {name!r} is already in line {first[name]}")
            first[name] = line
        return self.columns["path"]

    def refuse_empty(self, title: str) -> None:
        for line, value in zip(self.lines, self.columns[title], strict=True):
            if not value:
                raise DataError(f"{self.path}, line {line}: expected a {title}, got none")

    def translated(self, title: str, words: Mapping[str, Any]) -> list[Any]:
        translated = []
        for line, value in zip(self.lines, self.columns[title], strict=True):
            if value.lower() not in words:
                allowed = ", ".join(repr(word) for word in words)
                raise DataError(
                    f"{self.path}, line {line}: {title}: expected one of {allowed}, got {value!r}"
                )
            translated.append(words[value.lower()])
        return translated


def _read(path: Path) -> _Table:
    if not path.is_file():
        raise FormatError(f"{path}: no such file; expected a CSV with the column 'path'")
    lines: list[int] = []
    rows: list[list[str]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv_format.reader(file, strict=True)
            header = [title.strip() for title in next(reader, [])]
            for row in reader:
                if row:
                    lines.append(reader.line_num)
                    rows.append([value.strip() for value in row])
    except (UnicodeDecodeError, csv_format.Error) as error:
        raise FormatError(f"{path}: not a readable CSV file in UTF-8 ({error})") from error
    if "path" not in header:
        raise FormatError(f"{path}: expected the column 'path' (and label, split …), got {header}")
    if len(set(header)) != len(header):
        raise FormatError(f"{path}: expected each column once, got {header}")
    if _BOXES & set(header):
        raise DataError(
            f"{path}: has boxes ({', '.join(sorted(_BOXES & set(header)))}), which are not applied "
            "here; crop the images first and drop these columns"
        )
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            raise FormatError(
                f"{path}, line {line}: {len(row)} values for {len(header)} columns; "
                "quote values that contain a comma"
            )
    if not rows:
        raise DataError(f"{path}: lists no images")
    columns = {title: [row[place] for row in rows] for place, title in enumerate(header)}
    return _Table(path=path, lines=lines, columns=columns)
