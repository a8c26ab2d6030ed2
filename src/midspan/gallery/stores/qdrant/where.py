"""Conditions, and filters on the payload, as Qdrant's filters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from midspan.gallery.filters import Filter, Path, Scalar
from midspan.gallery.stores.qdrant.keys import field, numbers, span
from midspan.gallery.stores.turns.conditions import (
    After,
    Among,
    Before,
    Condition,
    Is,
    Outside,
    Passing,
    Span,
    Within,
)
from midspan.gallery.stores.turns.translate import Language, Translated, translate

if TYPE_CHECKING:
    from qdrant_client import models

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")  # what needs no quotes in a path
_BOUNDS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}


def as_filter(conditions: Sequence[Condition]) -> models.Filter | None:
    """`After` is not of them: it is an order, not only a condition."""
    must: list[Any] = []
    for condition in conditions:
        must += _parts(condition)
    return _every(must) if must else None


def equal(name: str, value: int | str | bool) -> Any:
    from qdrant_client import models

    return models.FieldCondition(key=name, match=models.MatchValue(value=value))


def between(name: str, **bounds: float) -> Any:
    from qdrant_client import models

    return models.FieldCondition(key=name, range=models.Range(**bounds))


def _parts(condition: Condition) -> list[Any]:
    from qdrant_client import models

    if isinstance(condition, Is):
        return [equal(condition.field, condition.value)]
    if isinstance(condition, Among):
        match = models.MatchAny(any=list(condition.values))  # type: ignore[arg-type]
        return [models.FieldCondition(key=condition.field, match=match)]
    if isinstance(condition, Span):
        bounds = {"gte": condition.low, "lt": condition.high}
        given = {name: bound for name, bound in bounds.items() if bound is not None}
        return [between(condition.field, **given)]
    if isinstance(condition, Outside):
        inside = between(condition.field, gte=condition.low, lt=condition.high)
        return [models.Filter(must_not=[inside])]
    if isinstance(condition, Within):
        return _within(condition.prefix)
    if isinstance(condition, Before):
        return [_before(condition.key)]
    if isinstance(condition, Passing):
        return _passing(condition)
    assert isinstance(condition, After)
    return []


def _within(prefix: str) -> list[Any]:
    whole, rest = span(prefix)
    parts = [equal(field(level), number) for level, number in enumerate(whole)]
    if rest is not None:
        parts.append(between(field(len(whole)), gte=rest[0], lt=rest[1]))
    return parts


def _before(key: str) -> Any:
    """The first number is less; or it is equal, and the second is less; and so on."""
    alternatives, shared = [], list[Any]()
    for level, number in enumerate(numbers(key)):
        alternatives.append(_every([*shared, between(field(level), lt=number)]))
        shared.append(equal(field(level), number))
    return _some(alternatives)


def _passing(condition: Passing) -> list[Any]:
    found = translated(condition.filter)
    if condition.judged:
        return [equal("owner", 0), *([] if found.word is None else [found.word])]
    return [] if found.word is None else [_some([equal("owner", 1), found.word])]


# ---- filters on the payload


def translated(filter: Filter) -> Translated[Any]:
    return translate(filter, QDRANT)


def means_the_same(payload: Mapping[str, Any]) -> bool:
    """Qdrant looks into lists: there each element counts, here none does."""
    return not any(
        isinstance(value, list | tuple)
        or (isinstance(value, Mapping) and not means_the_same(value))
        for value in payload.values()
    )


def _compare(path: Path, operator: str, value: Scalar) -> Any:
    if not all(_KEY.fullmatch(key) for key in path):
        return None
    name = ".".join(("payload", *path))
    if isinstance(value, bool | str):
        return equal(name, value) if operator == "==" else None  # it has no order of texts
    assert value is not None
    if operator == "==":  # 5 is 5.0: a match would tell them apart
        return between(name, gte=value, lte=value)
    return between(name, **{_BOUNDS[operator]: value})


def _every(words: Sequence[Any]) -> Any:
    from qdrant_client import models

    return models.Filter(must=list(words))


def _some(words: Sequence[Any]) -> Any:
    from qdrant_client import models

    return models.Filter(should=list(words))


QDRANT: Language[Any] = Language(compare=_compare, every=_every, some=_some)
