"""Filters as Milvus' expressions on the payload.

Only what Milvus means as we do is translated; the rest is compared here, item by item. `Not` is of
the rest: what Milvus says of a key that is not there differs by its version. So a condition may let
too much pass, and says whether it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from midspan.gallery.filters import And, Eq, Filter, In, Or, Path, Range, Scalar

EXACT = 2**53  # larger numbers Milvus compares as floats

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_ .-]*")  # digits would lead into lists
_TEXT = re.compile(r"[^\"'\\\x00-\x1f\x7f]*")

Condition = tuple[str, bool]
EVERYTHING: Condition = ("", False)


def where(filter: Filter) -> Condition:
    """(what all that pass fulfil, whether nothing else does); "" lets everything pass.

    Long payloads (`owner == 1`) Milvus does not see: those are never sure.
    """
    condition, sure = _where(filter)
    return (f"owner == 1 or ({condition})", sure) if condition else EVERYTHING


def _where(filter: Filter) -> Condition:
    if isinstance(filter, And):
        return _all(map(_where, filter.parts))
    if isinstance(filter, Or):
        return _any(map(_where, filter.parts))
    if not isinstance(filter, Eq | In | Range) or (found := _path(filter.path)) is None:
        return EVERYTHING
    if isinstance(filter, Eq):
        return _compare(found, "==", filter.value)
    if isinstance(filter, In):
        return _any(_compare(found, "==", value) for value in filter.values)
    return _all(_compare(found, operator, bound) for operator, bound in filter.bounds)


def _all(parts: Iterable[Condition]) -> Condition:
    every = list(parts)
    conditions = [f"({condition})" for condition, _ in every if condition]
    return " and ".join(conditions), all(sure for _, sure in every)


def _any(parts: Iterable[Condition]) -> Condition:
    every = list(parts)
    if not every or not all(condition for condition, _ in every):
        return EVERYTHING
    return " or ".join(f"({condition})" for condition, _ in every), all(s for _, s in every)


def _path(path: Path | str) -> str | None:
    if not all(_KEY.fullmatch(key) for key in path):
        return None
    return "payload" + "".join(f'["{key}"]' for key in path)


def _compare(found: str, operator: str, value: Scalar) -> Condition:
    if value is None:
        return EVERYTHING
    if isinstance(value, bool):
        return f"{found} {operator} {str(value).lower()}", True
    if isinstance(value, str):
        return (f'{found} {operator} "{value}"', True) if _TEXT.fullmatch(value) else EVERYTHING
    if abs(value) >= EXACT:
        return EVERYTHING
    return f"{found} {operator} {value!r}", True
