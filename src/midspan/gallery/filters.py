"""Payload filters: small typed values that each engine translates, with one meaning everywhere.

    Eq("brand", "acme") & Range("price", gte=5, lt=10) & ~Exists("sold")

A path leads through objects, never into lists: "maker.country", or ("maker", "country") if a key
holds a dot. A number equals a number only (1 = 1.0, but not true, not "1"). `Range` compares
numbers with numbers, texts with texts by code point. What a path does not lead to matches nothing,
so `~Eq(…)` also finds the items that lack it.

The JSON form, for files and requests:

    {"brand": "acme", "price": {"$gte": 5, "$lt": 10}, "$not": {"sold": {"$exists": true}}}
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midspan.errors import ItemError
from midspan.gallery.records import INTEGERS, Payload

Scalar = str | int | float | bool | None
Path = tuple[str, ...]

PATH_PARTS = 16
PART_CHARACTERS = 256
DEPTH = 32
LEAVES = 256  # comparisons in one filter, and values in one In

_UNSAFE = re.compile(r'["\\\x00-\x1f]')  # what JSON escapes: engines compare the escaped text
_MISSING = object()


class _Filter:
    """The operators; nothing else is shared."""

    __slots__ = ()

    def __and__(self, other: Filter) -> And:
        return And((self, other))  # type: ignore[arg-type]

    def __or__(self, other: Filter) -> Or:
        return Or((self, other))  # type: ignore[arg-type]

    def __invert__(self) -> Not:
        return Not(self)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Eq(_Filter):
    """The value at this path equals.

    Example:
        >>> from midspan.gallery import Eq
        >>> Eq("maker.country", "se")  # {"maker": {"country": "se"}} matches
        Eq(path=('maker', 'country'), value='se')
        >>> both = Eq("brand", "acme") & ~Eq("sold", True)
    """

    path: Path | str
    value: Scalar

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", check_path(self.path))
        _check_scalar(self.value)


@dataclass(frozen=True, slots=True)
class In(_Filter):
    """The value at this path is one of these.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> from midspan.gallery import In
        >>> shop = ms.Embeddings(np.array(["a", "b", "c"]), np.eye(3), ms.Space("tiny", 3))
        >>> with ms.Gallery.create("memory:", shop.space) as gallery:
        ...     _ = gallery.add(shop, payloads=[{"brand": one} for one in ("acme", "oak", "fir")])
        ...     hits = gallery.search(shop[:1], k=3, filter=In("brand", ["oak", "fir"]))[0]
        >>> sorted(hit.id for hit in hits)
        ['b', 'c']
    """

    path: Path | str
    values: Sequence[Scalar]

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", check_path(self.path))
        if not isinstance(self.values, list | tuple):
            raise ItemError(f"In: expected a list of values, got {self.values!r:.80}")
        if len(self.values) > LEAVES:
            raise ItemError(f"In has {len(self.values)} values; at most {LEAVES}")
        object.__setattr__(self, "values", tuple(map(_check_scalar, self.values)))


@dataclass(frozen=True, slots=True)
class Range(_Filter):
    """The value at this path lies within these bounds.

    Example:
        >>> from midspan.gallery import Range, parse_filter
        >>> Range("price", gte=5, lt=10) == parse_filter({"price": {"$gte": 5, "$lt": 10}})
        True
        >>> Range("year").bounds
        Traceback (most recent call last):
        midspan.errors.ItemError: Range: expected at least one of gt, gte, lt, lte, got none
    """

    path: Path | str
    gt: str | float | None = None
    gte: str | float | None = None
    lt: str | float | None = None
    lte: str | float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", check_path(self.path))
        bounds = [bound for bound in (self.gt, self.gte, self.lt, self.lte) if bound is not None]
        if not bounds:
            raise ItemError("Range: expected at least one of gt, gte, lt, lte, got none")
        if len({isinstance(_check_scalar(bound), str) for bound in bounds}) > 1 or any(
            isinstance(bound, bool) for bound in bounds
        ):
            raise ItemError(f"Range: expected bounds all numbers or all texts, got {bounds}")

    @property
    def bounds(self) -> list[tuple[str, str | float]]:
        """(operator, bound) of those that are given."""
        every = ((">", self.gt), (">=", self.gte), ("<", self.lt), ("<=", self.lte))
        return [(operator, bound) for operator, bound in every if bound is not None]


@dataclass(frozen=True, slots=True)
class Exists(_Filter):
    """The path leads to something, be it null.

    Example:
        >>> from midspan.gallery import Exists
        >>> ~Exists("sold")  # items whose payload has no such key
        Not(part=Exists(path=('sold',)))
    """

    path: Path | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", check_path(self.path))


@dataclass(frozen=True, slots=True)
class And(_Filter):
    """All parts hold.

    Example:
        >>> from midspan.gallery import And, Eq, Exists
        >>> And((Eq("brand", "acme"), Exists("price"))) == Eq("brand", "acme") & Exists("price")
        True
    """

    parts: tuple[Filter, ...]

    def __post_init__(self) -> None:
        _check_parts(self.parts)


@dataclass(frozen=True, slots=True)
class Or(_Filter):
    """Some part holds.

    Example:
        >>> from midspan.gallery import Eq, Or
        >>> acme, oak = Eq("brand", "acme"), Eq("brand", "oak")
        >>> Or((acme, oak)) == acme | oak
        True
    """

    parts: tuple[Filter, ...]

    def __post_init__(self) -> None:
        _check_parts(self.parts)


@dataclass(frozen=True, slots=True)
class Not(_Filter):
    """The part does not hold.

    Example:
        >>> from midspan.gallery import Eq, Not
        >>> Not(Eq("sold", True)) == ~Eq("sold", True)  # finds items without the key too
        True
    """

    part: Filter

    def __post_init__(self) -> None:
        _check_parts((self.part,))


Filter = Eq | In | Range | Exists | And | Or | Not


def check_path(path: object) -> Path:
    parts = tuple(path.split(".")) if isinstance(path, str) else path
    if not isinstance(parts, tuple) or not 0 < len(parts) <= PATH_PARTS:
        raise ItemError(f"a filter path is 'key.key' or a tuple of up to {PATH_PARTS} keys")
    for part in parts:
        if not isinstance(part, str) or not 0 < len(part) <= PART_CHARACTERS:
            raise ItemError(f"filter path {parts!r:.80}: {part!r:.40} is not a key")
        if _UNSAFE.search(part) or part.startswith("$"):
            raise ItemError(
                f"filter path {parts!r:.80}: keys with quotes, backslashes, control characters or "
                "a leading $ can be stored but not filtered by"
            )
        _check_scalar(part)
    return parts


def _check_scalar(value: object) -> Scalar:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ItemError(f"filter value {value!r:.80} is not valid Unicode") from error
        if "\0" in value:
            raise ItemError(f"filter value {value!r:.80} holds a NUL character")
        return value
    if isinstance(value, int) and -INTEGERS <= value < INTEGERS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ItemError(
        f"filter value {value!r:.80} is not text, a finite number of up to 64 bits, true, false "
        "or null"
    )


def _check_parts(parts: object) -> None:
    if not isinstance(parts, tuple) or not parts:
        raise ItemError("And, Or: expected a tuple of at least one filter")
    for part in parts:
        if not isinstance(part, Filter):
            raise ItemError(f"{part!r:.80} is not a filter")
    if sum(map(leaves, parts)) > LEAVES:
        raise ItemError(f"a filter may make at most {LEAVES} comparisons")


def leaves(filter: Filter) -> int:
    """Number of comparisons; each and, or, not counts one more."""
    if isinstance(filter, And | Or):
        return 1 + sum(map(leaves, filter.parts))
    if isinstance(filter, Not):
        return 1 + leaves(filter.part)
    return max(1, len(filter.values)) if isinstance(filter, In) else 1


# ---- meaning ------------------------------------------------------------------------------------


def matches(filter: Filter, payload: Payload) -> bool:
    """The reference that every engine's translation must agree with."""
    if isinstance(filter, And):
        return all(matches(part, payload) for part in filter.parts)
    if isinstance(filter, Or):
        return any(matches(part, payload) for part in filter.parts)
    if isinstance(filter, Not):
        return not matches(filter.part, payload)
    actual = _follow(payload, filter.path)
    if actual is _MISSING:
        return False
    if isinstance(filter, Exists):
        return True
    if isinstance(filter, Eq):
        return _equal(actual, filter.value)
    if isinstance(filter, In):
        return any(_equal(actual, value) for value in filter.values)
    return all(_compare(actual, operator, bound) for operator, bound in filter.bounds)


def _follow(payload: Any, path: Path | str) -> object:
    for part in path:
        if not isinstance(payload, Mapping) or part not in payload:
            return _MISSING
        payload = payload[part]
    return payload


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return type(value).__name__


def _equal(stored: object, value: Scalar) -> bool:
    return _kind(stored) == _kind(value) and stored == value


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


def _compare(stored: object, operator: str, bound: str | float) -> bool:
    return _kind(stored) == _kind(bound) and _OPERATORS[operator](stored, bound)


# ---- JSON form ----------------------------------------------------------------------------------


def parse_filter(raw: object) -> Filter:
    """A filter from its JSON form; several keys of one object must all match.

    Args:
        raw: Such as {"brand": "acme", "price": {"$gte": 5}}. Conditions: $eq, $in, $exists, $gt,
            $gte, $lt, $lte; around them $and, $or with a list, and $not.

    Returns:
        The filter, as `Gallery.search` takes it.

    Raises:
        ItemError: It is not such an object; the message names the place.

    Example:
        >>> from midspan.gallery import parse_filter
        >>> parse_filter({"brand": "acme", "$not": {"sold": {"$exists": True}}})
        And(parts=(Eq(path=('brand',), value='acme'), Not(part=Exists(path=('sold',)))))
    """
    return _parse(raw, depth=0)


def _parse(raw: object, *, depth: int) -> Filter:
    if depth > DEPTH:
        raise ItemError(f"a filter may be nested {DEPTH} levels deep")
    if not isinstance(raw, Mapping) or not raw:
        raise ItemError(f"a filter is a JSON object with at least one key, got {raw!r:.80}")
    parts: list[Filter] = []
    for key, value in raw.items():
        if key in ("$and", "$or"):
            if not isinstance(value, list) or not value:
                raise ItemError(f"{key}: expected a list of filters, got {value!r:.80}")
            inner = tuple(_parse(part, depth=depth + 1) for part in value)
            parts.append(And(inner) if key == "$and" else Or(inner))
        elif key == "$not":
            parts.append(Not(_parse(value, depth=depth + 1)))
        else:
            parts.append(_parse_condition(key, value))
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _parse_condition(path: str, value: object) -> Filter:
    if not isinstance(value, Mapping):
        return Eq(path, value)  # type: ignore[arg-type]  # checked there
    known = {"$eq", "$in", "$exists", "$gt", "$gte", "$lt", "$lte"}
    if not value or not value.keys() <= known:
        raise ItemError(
            f"filter on {path!r}: {value!r:.80}; expected one or more of {sorted(known)}"
        )
    parts: list[Filter] = []
    bounds = {key[1:]: value[key] for key in ("$gt", "$gte", "$lt", "$lte") if key in value}
    if bounds:
        parts.append(Range(path, **bounds))
    if "$eq" in value:
        parts.append(Eq(path, value["$eq"]))
    if "$in" in value:
        parts.append(In(path, value["$in"]))
    if "$exists" in value:
        if not isinstance(value["$exists"], bool):
            raise ItemError(f"filter on {path!r}: expected $exists true or false")
        parts.append(Exists(path) if value["$exists"] else Not(Exists(path)))
    return parts[0] if len(parts) == 1 else And(tuple(parts))
