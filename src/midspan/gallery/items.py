"""Items: what a gallery stores beside vectors, and what it refuses to store."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from midspan.errors import ItemError
from midspan.spaces import Space

Payload = Mapping[str, Any]  # a JSON object

ID_BYTES = 512
URI_BYTES = 4096
PAYLOAD_BYTES = 2**20
PAYLOAD_DEPTH = 32
INTEGERS = 2**63  # what every engine can compare without rounding

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Draft:
    """What a writer gives: checked on creation, so that no engine sees a bad one.

    `created` and `changed` (seconds since 1970) are for copies of another gallery; None means now.
    """

    id: str
    uri: str | None = None
    payload: Payload = field(default_factory=dict)
    created: float | None = None
    changed: float | None = None
    json: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", check_id(self.id))
        if self.uri is not None:
            _check_text(self.uri, what=f"the uri of {self.id!r}", limit=URI_BYTES)
        object.__setattr__(self, "json", payload_json(self.payload, of=self.id))


@dataclass(frozen=True, slots=True)
class Item:
    """What is stored. `spaces` are the fingerprints of the spaces that it has a vector in."""

    id: str
    uri: str | None
    payload: dict[str, Any]
    revision: int  # 1, then one more with each replacement
    created: float
    changed: float
    spaces: tuple[str, ...]


class Hit(NamedTuple):  # made by the million: a tuple takes a quarter of the time
    """One found item. A larger score is better: cosine, inner product, minus squared distance."""

    id: str
    score: float
    space: Space  # of the vector that was compared
    uri: str | None
    payload: dict[str, Any]


def check_id(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ItemError(f"an item id is a text of 1 to {ID_BYTES} bytes, got {value!r:.80}")
    return _check_text(value, what="item id", limit=ID_BYTES)


def _check_text(value: object, *, what: str, limit: int) -> str:
    if not isinstance(value, str):
        raise ItemError(f"{what} is {type(value).__name__}; wanted text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ItemError(f"{what} {value!r:.80} is not valid Unicode ({error.reason})") from error
    if size > limit:
        raise ItemError(f"{what} {value!r:.40} has {size} bytes; at most {limit} are kept")
    if _CONTROL.search(value):
        raise ItemError(f"{what} {value!r:.80} holds control characters; remove them")
    return str(value)


def payload_json(payload: object, *, of: str) -> str:
    """The payload as the one JSON text that all engines keep."""
    if not isinstance(payload, Mapping):
        raise ItemError(f"the payload of {of!r} is {type(payload).__name__}; wanted a JSON object")
    _check_value(payload, of=of, depth=0)
    try:
        text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError) as error:
        raise ItemError(f"the payload of {of!r} is not JSON ({error})") from error
    if size > PAYLOAD_BYTES:
        raise ItemError(
            f"the payload of {of!r} has {size:,} bytes; at most {PAYLOAD_BYTES:,} are kept: "
            "store the large part elsewhere and its address here"
        )
    return text


def _check_value(value: object, *, of: str, depth: int) -> None:
    if depth > PAYLOAD_DEPTH:
        raise ItemError(f"the payload of {of!r} is nested deeper than {PAYLOAD_DEPTH}")
    if isinstance(value, str):
        if "\0" in value:
            raise ItemError(f"the payload of {of!r} holds a NUL character; remove it")
    elif isinstance(value, bool) or value is None:
        pass
    elif isinstance(value, int):
        if not -INTEGERS <= value < INTEGERS:
            raise ItemError(f"the payload of {of!r} holds {value}, beyond 64 bits; give it as text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ItemError(f"the payload of {of!r} holds {value}, which JSON does not know")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ItemError(f"the payload of {of!r} has the key {key!r:.80}; keys are text")
            _check_value(key, of=of, depth=depth)
            _check_value(part, of=of, depth=depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_value(part, of=of, depth=depth + 1)
    else:
        raise ItemError(
            f"the payload of {of!r} holds a {type(value).__name__}; "
            "JSON knows text, numbers, true, false, null, lists and objects"
        )
