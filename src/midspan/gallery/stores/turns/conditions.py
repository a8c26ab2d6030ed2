"""What rows are asked for: a few conditions that all must hold, which each engine translates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from midspan.gallery.filters import Filter


@dataclass(frozen=True, slots=True)
class Is:
    field: str
    value: int | str


@dataclass(frozen=True, slots=True)
class Among:
    field: str
    values: Sequence[int | str]


@dataclass(frozen=True, slots=True)
class Span:
    """low <= field < high; None is no bound."""

    field: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """field < low or high <= field."""

    field: str
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Within:
    """Keys that begin so; it ends with a slash."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Before:
    """Keys less than this one."""

    key: str


@dataclass(frozen=True, slots=True)
class After:
    """Keys greater than this one, in their order: texts of records, numbers of vectors."""

    key: str | int


@dataclass(frozen=True, slots=True)
class Passing:
    """Payloads that the engine believes to pass, and those that it cannot judge."""

    filter: Filter
    judged: bool = False  # only those that it can judge


Condition = Is | Among | Span | Outside | Within | Before | After | Passing
