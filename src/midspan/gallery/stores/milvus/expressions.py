"""Conditions as Milvus' boolean expressions."""

from __future__ import annotations

from collections.abc import Sequence

from midspan.gallery.stores.milvus.where import where
from midspan.gallery.stores.turns import conditions as one
from midspan.gallery.stores.turns.conditions import Condition, Passing


def expression(conditions: Sequence[Condition]) -> str:
    parts = [text for condition in conditions if (text := _one(condition))]
    return " and ".join(parts)


def _one(condition: Condition) -> str:
    if isinstance(condition, one.Is):
        return f"{condition.field} == {_value(condition.value)}"
    if isinstance(condition, one.Among):
        return f"{condition.field} in {listed(condition.values)}"
    if isinstance(condition, one.Span):
        low = "" if condition.low is None else f"{condition.field} >= {condition.low!r}"
        high = "" if condition.high is None else f"{condition.field} < {condition.high!r}"
        return " and ".join(filter(None, (low, high)))
    if isinstance(condition, one.Outside):
        return f"({condition.field} < {condition.low} or {condition.field} >= {condition.high})"
    if isinstance(condition, one.Within):  # "0" is the character behind the slash
        return f'pk > "{condition.prefix}" and pk < "{condition.prefix[:-1]}0"'
    if isinstance(condition, one.Before):
        return f"pk < {_value(condition.key)}"
    if isinstance(condition, one.After):
        return f"pk > {_value(condition.key)}"
    return _passing(condition)


def _passing(condition: Passing) -> str:
    text, _ = where(condition.filter)
    if condition.judged:
        return f"owner == 0 and ({text})" if text else "owner == 0"
    return f"(owner == 1 or ({text}))" if text else ""


def listed(keys: Sequence[str | int]) -> str:
    return "[" + ",".join(map(_value, keys)) + "]"


def _value(key: str | int) -> str:
    """Of our own making: numbers, and texts of letters, digits, / and dots."""
    return f'"{key}"' if isinstance(key, str) else str(key)
