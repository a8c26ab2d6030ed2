"""Filters as Milvus' expressions on the payload."""

from __future__ import annotations

import re

from midspan.gallery.filters import Filter, Path, Scalar
from midspan.gallery.stores.turns.translate import Language, translate

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_ .-]*")  # digits would lead into lists
_TEXT = re.compile(r"[^\"'\\\x00-\x1f\x7f]*")


def where(filter: Filter) -> tuple[str, bool]:
    """(what all plain payloads that pass fulfil, whether no others do); "" lets all pass."""
    found = translate(filter, MILVUS)
    return found.word or "", found.sure


def _compare(path: Path, operator: str, value: Scalar) -> str | None:
    if not all(_KEY.fullmatch(key) for key in path):
        return None
    found = "payload" + "".join(f'["{key}"]' for key in path)
    if isinstance(value, bool):
        return f"{found} {operator} {str(value).lower()}"
    if isinstance(value, str):
        return f'{found} {operator} "{value}"' if _TEXT.fullmatch(value) else None
    return f"{found} {operator} {value!r}"


MILVUS = Language(
    compare=_compare,
    every=lambda words: " and ".join(f"({word})" for word in words),
    some=lambda words: " or ".join(f"({word})" for word in words),
)
