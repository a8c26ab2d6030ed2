"""Filters in an engine's own words.

Only what the engine means as we do is translated; the rest is compared here, item by item. `Not`
and `Exists` are of the rest: what engines say of a key that is not there differs. So a translation
may let too much pass, and says whether it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from midspan.gallery.filters import And, Eq, Filter, In, Or, Path, Range, Scalar

EXACT = 2**53  # larger numbers the engines compare as floats

Word = TypeVar("Word")


@dataclass(frozen=True, slots=True)
class Translated(Generic[Word]):
    word: Word | None  # None lets everything pass
    sure: bool  # nothing else passes


@dataclass(frozen=True, slots=True)
class Language(Generic[Word]):
    compare: Callable[[Path, str, Scalar], Word | None]  # path, operator, value; None: no such word
    every: Callable[[Sequence[Word]], Word]
    some: Callable[[Sequence[Word]], Word]


def translate(filter: Filter, language: Language[Word]) -> Translated[Word]:
    if isinstance(filter, And):
        return _every((translate(part, language) for part in filter.parts), language)
    if isinstance(filter, Or):
        return _some((translate(part, language) for part in filter.parts), language)
    if not isinstance(filter, Eq | In | Range):
        return Translated(None, False)
    path = tuple(filter.path)
    if isinstance(filter, Eq):
        return _compare(path, "==", filter.value, language)
    if isinstance(filter, In):
        return _some((_compare(path, "==", value, language) for value in filter.values), language)
    return _every(
        (_compare(path, operator, bound, language) for operator, bound in filter.bounds), language
    )


def _compare(
    path: Path, operator: str, value: Scalar, language: Language[Word]
) -> Translated[Word]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or (number and abs(float(value)) >= EXACT):
        return Translated(None, False)
    word = language.compare(path, operator, value)
    return Translated(word, word is not None)


def _every(parts: Iterable[Translated[Word]], language: Language[Word]) -> Translated[Word]:
    found = list(parts)
    words = [part.word for part in found if part.word is not None]
    sure = all(part.sure for part in found)
    return Translated(language.every(words) if words else None, sure)


def _some(parts: Iterable[Translated[Word]], language: Language[Word]) -> Translated[Word]:
    found = list(parts)
    words = [part.word for part in found if part.word is not None]
    if not found or len(words) < len(found):
        return Translated(None, False)
    return Translated(language.some(words), all(part.sure for part in found))
