"""Rows of one request: not too many, not too large."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

Thing = TypeVar("Thing")


def portions(sized: Iterable[tuple[Thing, int]], *, rows: int, size: int) -> Iterator[list[Thing]]:
    """Of (thing, its bytes); a thing that is larger than a portion may be comes alone."""
    portion, total = list[Thing](), 0
    for thing, weight in sized:
        if portion and (total + weight > size or len(portion) == rows):
            yield portion
            portion, total = [], 0
        portion.append(thing)
        total += weight
    if portion:
        yield portion
