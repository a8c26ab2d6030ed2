"""Labels are names. Numbers for a loop are made from names here, and names from numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from midspan.errors import DataError, LabelMismatch

IntArray = npt.NDArray[np.int64]
StrArray = npt.NDArray[np.str_]

SHOWN = 3  # names of each side in a message


class NumberedLabels(UserWarning):
    """Labels that an earlier version numbered are compared with those of another file."""


def as_names(labels: npt.ArrayLike, *, what: str = "labels") -> StrArray:
    """(N,) the labels as names: text stays as it is, 7 becomes '7', a missing one is an error."""
    values = np.asarray(labels)
    if values.ndim != 1:
        raise DataError(f"{what} have shape {values.shape}; expected (N,), one name for each item")
    names = _text(values, what)
    empty = np.flatnonzero(names == "")
    if len(empty):
        raise DataError(
            f"{len(empty)} of {len(names)} {what} are empty, first row {empty[0]}; give each item "
            "the name of its class, or leave these items out"
        )
    return names


def _text(values: npt.NDArray[Any], what: str) -> StrArray:
    kind = values.dtype.kind
    if kind == "U":
        return values
    if kind in "iub":
        return values.astype(np.str_)
    if kind == "S":
        try:
            return np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{what} are bytes that are not UTF-8, first {error.object!r}; decode them to text "
                "before they are saved"
            ) from None
    if kind == "f":
        missing = int(np.isnan(values).sum())
        if missing:
            raise DataError(
                f"{missing} of {len(values)} {what} are NaN (missing); drop those rows first"
            )
        # Beyond 2^53 neighbouring numbers are one float: distinct names would become one.
        whole = (np.abs(values) <= 2**53) & (values == np.floor(values))
        if whole.all():
            return values.astype(np.int64).astype(np.str_)
    if kind == "O" and all(isinstance(one, str | int | np.integer) for one in values):
        return np.array([str(one) for one in values], dtype=np.str_)
    raise DataError(
        f"{what} are {values.dtype}, first {values[:1].tolist()}; expected names (text) or whole "
        "numbers"
    )


@dataclass(frozen=True, slots=True)
class ClassNames:
    """The classes of a training set in a fixed order: the place of a name is its number."""

    names: tuple[str, ...]
    _places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = tuple(str(name) for name in self.names)
        places = {name: place for place, name in enumerate(names)}
        if len(places) < len(names):
            doubled = next(name for place, name in enumerate(names) if places[name] != place)
            raise DataError(
                f"{len(names) - len(places)} class names are duplicates, first {doubled!r}; a "
                "class is known by its name, so give each class its own"
            )
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "_places", places)

    @classmethod
    def of(cls, labels: StrArray) -> ClassNames:
        """The names that occur; sorted as numbers if all are whole numbers, else as text."""
        return cls(tuple(ordered(set(labels.tolist()))))

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, labels: StrArray) -> IntArray:
        """(N,) the number of each label; a name that is not among the classes is an error."""
        try:
            return np.array([self._places[name] for name in labels.tolist()], dtype=np.int64)
        except KeyError as error:
            raise DataError(
                f"the label {error.args[0]!r} is not among the {len(self)} class names "
                f"({some_names(self.names)})"
            ) from None

    def decode(self, numbers: IntArray) -> StrArray:
        return np.array(self.names, dtype=np.str_)[numbers]

    def places_in(self, other: Sequence[str]) -> IntArray:
        """(C,) where each of these classes is among the `other` ones, by name; -1 if nowhere."""
        place = {name: index for index, name in enumerate(other)}
        return np.array([place.get(name, -1) for name in self.names], dtype=np.int64)


def ordered(names: Iterable[str]) -> list[str]:
    names = list(names)
    if are_numbers(names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def are_numbers(names: Iterable[str]) -> bool:
    return all(name.removeprefix("-").isdecimal() for name in names)


def codes(*sides: StrArray) -> tuple[IntArray, ...]:
    """Each side as numbers 0 … C-1 for one comparison: equal names, equal numbers."""
    place: dict[str, int] = {}
    return tuple(
        np.array([place.setdefault(name, len(place)) for name in side.tolist()], dtype=np.int64)
        for side in sides
    )


def check_overlap(
    query: StrArray, gallery: StrArray, *, what: tuple[str, str] = ("query", "gallery")
) -> None:
    """Two sets without a common name come from different sources: an error that shows both."""
    mine, theirs = set(query.tolist()), set(gallery.tolist())
    if not mine or not theirs or not mine.isdisjoint(theirs):
        return
    raise LabelMismatch(
        f"{what[0]} and {what[1]} have no label in common: the {what[0]} has {some_names(mine)}, "
        f"the {what[1]} {some_names(theirs)}; labels are compared by name, so label both from one "
        "list of names"
    )


def warn_numbered(*, what: str) -> None:
    """Warn that labels numbered by an earlier version are compared with those of another file."""
    warnings.warn(
        f"the labels of the {what} are numbers that an earlier version of midspan gave to the "
        "classes of one folder or list; they agree with another file's only if both were made from "
        "the same classes. Embed the images again to get their names",
        NumberedLabels,
        stacklevel=3,
    )


def some_names(names: Iterable[str]) -> str:
    first = ordered(names)
    shown = ", ".join(repr(name) for name in first[:SHOWN])
    return shown if len(first) <= SHOWN else f"{shown} … ({len(first):,} names)"
