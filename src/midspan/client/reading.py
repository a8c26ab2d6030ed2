"""From a service's JSON to values.

A newer service may say more than is known here: that is left out. One that says less is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from midspan.errors import FormatError

T = TypeVar("T")


def read(kind: type[T], raw: object) -> T:
    """A value of this kind; FormatError if the answer does not hold one."""
    made: T = _read(kind, raw, kind.__name__)
    return made


def _read(kind: Any, raw: object, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return raw
    if origin in (Union, types.UnionType):  # X | None, the only one here
        return None if raw is None else _read(inner[0], raw, where)
    if origin is tuple and isinstance(raw, list):
        return tuple(_read(inner[0], one, where) for one in raw)
    if origin is dict and isinstance(raw, dict):
        return {key: _read(inner[1], one, where) for key, one in raw.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(raw, dict):
        return _read_fields(kind, raw, where)
    if kind is float and raw is None:
        return float("nan")  # JSON has no NaN
    if kind is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if isinstance(kind, type) and isinstance(raw, kind) and (kind is bool) == (type(raw) is bool):
        return raw
    raise FormatError(
        f"the service's answer: for {where} expected {_name(kind)}, got {type(raw).__name__}; "
        "is this the address of a midspan service?"
    )


def _read_fields(kind: type, raw: dict[str, Any], where: str) -> Any:
    values = {}
    for name, wire, hint in _fields(kind):
        if wire not in raw:
            raise FormatError(
                f"the service's answer has no {wire!r} in {where}; is it an older version?"
            )
        values[name] = _read(hint, raw[wire], f"{where}.{wire}")
    return kind(**values)


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, str, Any], ...]:
    """(name, name on the wire, type) of each field."""
    hints = get_type_hints(kind)
    return tuple(
        (field.name, field.metadata.get("wire", field.name), hints[field.name])
        for field in dataclasses.fields(kind)
    )


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)
