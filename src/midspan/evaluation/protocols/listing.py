"""Lists of items as the data sets write them: read with care, handed on as small values.

What a list names becomes an id (a relative image path) and columns. No image is opened here.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from midspan.errors import FormatError, UnknownId
from midspan.spaces import Column, Embeddings, StrArray


@dataclass(frozen=True, slots=True)
class Items:
    """Ids and columns of one part of a data set."""

    ids: StrArray  # (N,)
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, embeddings: Embeddings) -> Embeddings:
        """The vectors of these items, with these columns; an item without a vector is an error."""
        return select(embeddings, self.ids).with_columns(self.columns)


def select(embeddings: Embeddings, ids: StrArray) -> Embeddings:
    """`embeddings.take` without a copy where nothing changes."""
    if len(ids) == len(embeddings) and (ids == embeddings.ids).all():
        return embeddings
    return embeddings.take(ids)


def items(rows: Sequence[tuple[Any, ...]], *, columns: Sequence[str], source: Path) -> Items:
    """Rows of (id, value of each column) → Items; an empty list or a doubled id is an error."""
    if not rows:
        raise FormatError(f"{source}: lists nothing that this protocol uses")
    ids = np.array([row[0] for row in rows], dtype=np.str_)
    names, counts = np.unique(ids, return_counts=True)
    if len(names) < len(ids):
        raise FormatError(f"{source}: lists {str(names[counts > 1][0])!r} more than once")
    values = {name: np.array([row[1 + at] for row in rows]) for at, name in enumerate(columns)}
    return Items(ids=ids, columns=values)


def find(root: Path, *names: str) -> Path:
    """The first of these files below `root` that exists."""
    for name in names:
        if (root / name).is_file():
            return root / name
    raise FormatError(f"{root}: has no file {' or '.join(names)}; is it the data set's own folder?")


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The file as text; what goes wrong while reading is one kind of error."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield file
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{path}: not readable as text ({error})") from error
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text) of each line that is not empty."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield number, line.rstrip("\r\n")


def fields(path: Path, *, expected: str, skip: int = 0) -> Iterator[tuple[str, list[str]]]:
    """(where, fields) of each line of words, after the first `skip` lines.

    `expected` names the fields, as 'image_id class_id path'; another number of them is an error.
    """
    count = len(expected.split())
    for number, line in lines(path):
        if number <= skip:
            continue
        words = line.split()
        if len(words) != count:
            raise FormatError(f"{path}:{number}: expected '{expected}', got {line[:80]!r}")
        yield f"{path}:{number}", words


def table(path: Path, *, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(where, the requested fields) of each row of a CSV file with a header line."""
    with opened(path) as file:
        reader = csv.reader(file)
        header = [name.strip().lower() for name in next(reader, [])]
        if not {name.lower() for name in columns} <= set(header):
            raise FormatError(
                f"{path}: expected the columns {', '.join(columns)} in the first line, "
                f"got {', '.join(header) or 'none'}"
            )
        places = [header.index(name.lower()) for name in columns]
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if row and len(row) != len(header):
                raise FormatError(f"{where}: {len(row)} fields, the first line has {len(header)}")
            if row:
                yield where, [row[place].strip() for place in places]


def whole_numbers(path: Path, *, expected: str) -> npt.NDArray[np.int32]:
    """(N, fields) of a long file that holds nothing but whole numbers below 2³¹, read by NumPy."""
    count = len(expected.split())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an empty file is only a warning for NumPy
            numbers = np.loadtxt(path, dtype=np.int32, ndmin=2, comments=None)
    except (ValueError, OSError, UserWarning) as error:
        raise FormatError(f"{path}: expected lines of '{expected}' ({error})") from error
    if numbers.shape[1] != count:
        raise FormatError(f"{path}: expected lines of '{expected}', got shape {numbers.shape}")
    return numbers


def whole(text: str, *, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise FormatError(f"{where}: expected a whole number, got {text[:80]!r}") from None


def image_id(name: str, *, where: str) -> str:
    """A relative path that stays below the data set's folder, as an id."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise FormatError(
            f"{where}: the image {name[:80]!r} is not a path below the data set's folder"
        )
    return name


def known_rows(
    embeddings: Embeddings, ids: StrArray, *, skip_missing: bool, meaning: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(row of each id, which ids have one). Missing ones only if the caller said so."""
    known = np.isin(ids, embeddings.ids)
    if not known.all() and not skip_missing:
        raise UnknownId(
            f"{int((~known).sum())} of {len(ids)} ids of the protocol have no vector, first "
            f"{str(ids[~known][0])!r}; embed them, or (in Python) use skip_missing=True to "
            f"{meaning}"
        )
    if not known.any():
        raise UnknownId(
            f"none of the protocol's {len(ids)} ids has a vector: expected {str(ids[0])!r} …, got "
            f"{embeddings.ids[:1].tolist()} …; ids are the paths of the data set"
        )
    rows = np.full(len(ids), -1, dtype=np.int64)
    rows[known] = embeddings.rows_of(ids[known])
    return rows, known
