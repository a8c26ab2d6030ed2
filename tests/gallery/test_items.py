"""What a gallery takes and what it refuses, before any store sees it."""

from __future__ import annotations

from typing import Any

import pytest

from midspan.errors import ItemError
from midspan.gallery.records import Draft


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("", "1 to 512 bytes"),
        (None, "1 to 512 bytes"),
        (7, "1 to 512 bytes"),
        ("x" * 513, "513 bytes; at most 512"),
        ("ä" * 257, "514 bytes; at most 512"),
        ("a\0b", "control characters"),
        ("a\nb", "control characters"),
        ("a\x85b", "control characters"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_check_id_invalid_raises(id: Any, message: str) -> None:
    with pytest.raises(ItemError, match=message):
        Draft(id)


@pytest.mark.parametrize("id", ["a", "ä" * 256, "../../etc/passwd", " ", "🙂", "'; --", "$"])
def test_check_id_valid_is_accepted(id: str) -> None:
    assert Draft(id).id == id


def deep(levels: int) -> dict[str, Any]:
    return {"a": deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ([1, 2], "is list; expected a JSON object"),
        ("text", "is str; expected a JSON object"),
        ({"a": float("nan")}, "holds nan"),
        ({"a": [float("-inf")]}, "holds -inf"),
        ({"a": 2**63}, "beyond 64 bits"),
        ({"a": b"bytes"}, "holds a bytes"),
        ({"a": {1, 2}}, "holds a set"),
        ({1: "a"}, "keys are text"),
        ({"a": "x\0y"}, "NUL"),
        ({"x\0y": 1}, "NUL"),
        ({"a": "\udc00"}, "is not JSON"),
        ({"a": "x" * 2**20}, "at most 1,048,576 are kept"),
        (deep(40), "nested deeper than 32"),
    ],
)
def test_check_payload_invalid_raises(payload: Any, message: str) -> None:
    with pytest.raises(ItemError, match=message):
        Draft("a", payload=payload)


def test_check_payload_recursive_raises() -> None:
    payload: dict[str, Any] = {}
    payload["self"] = payload
    with pytest.raises(ItemError, match="nested deeper"):
        Draft("a", payload=payload)


@pytest.mark.parametrize("uri", [7, "x" * 4097, "a\0b", "\ud800"])
def test_check_uri_invalid_raises(uri: Any) -> None:
    with pytest.raises(ItemError, match="uri of 'a'"):
        Draft("a", uri=uri)


def test_payload_is_stored_as_one_json_text() -> None:
    assert Draft("a", payload={"ä": (1, True, None)}).json == '{"ä":[1,true,null]}'
