"""The meaning of filters and their JSON form."""

from __future__ import annotations

from typing import Any

import pytest

from midspan.errors import ItemError
from midspan.gallery.filters import (
    And,
    Eq,
    Exists,
    Filter,
    In,
    Not,
    Or,
    Range,
    matches,
    parse_filter,
)

ITEM: dict[str, Any] = {"n": 5, "f": 5.5, "t": "b", "yes": True, "no": None, "deep": {"x": 1}}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Eq("n", 5), True),
        (Eq("n", 5.0), True),
        (Eq("n", "5"), False),
        (Eq("yes", True), True),
        (Eq("yes", 1), False),
        (Eq("no", None), True),
        (Eq("missing", None), False),
        (Eq("deep.x", 1), True),
        (Eq("deep", 1), False),
        (Eq("n.x", 1), False),
        (In("t", ("a", "b")), True),
        (In("t", ()), False),
        (Range("n", gt=4, lt=6), True),
        (Range("n", gt=5), False),
        (Range("n", gte=5, lte=5), True),
        (Range("t", gte="a", lt="c"), True),
        (Range("t", gte=0), False),
        (Range("yes", gte=0), False),
        (Exists("no"), True),
        (Exists("deep.y"), False),
        (~Eq("missing", 1), True),
        (Eq("n", 5) & Eq("t", "x"), False),
        (Eq("n", 5) | Eq("t", "x"), True),
    ],
)
def test_filter_matches_by_its_definition(condition: Filter, expected: bool) -> None:
    assert matches(condition, ITEM) is expected
    assert matches(Not(condition), ITEM) is not expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"brand": "acme"}, Eq("brand", "acme")),
        ({"a.b": {"$eq": 1}}, Eq(("a", "b"), 1)),
        ({"a": 1, "b": None}, And((Eq("a", 1), Eq("b", None)))),
        ({"a": {"$gt": 1, "$lte": 2}}, Range("a", gt=1, lte=2)),
        ({"a": {"$gte": "x", "$exists": True}}, And((Range("a", gte="x"), Exists("a")))),
        ({"a": {"$in": [1, "x"]}}, In("a", (1, "x"))),
        ({"a": {"$exists": False}}, Not(Exists("a"))),
        ({"$or": [{"a": 1}, {"b": 2}]}, Or((Eq("a", 1), Eq("b", 2)))),
        ({"$and": [{"a": 1}]}, And((Eq("a", 1),))),
        ({"$not": {"a": 1}}, Not(Eq("a", 1))),
    ],
)
def test_parse_filter_json_gives_the_filter(raw: Any, expected: Filter) -> None:
    assert parse_filter(raw) == expected


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "at least one key"),
        ([], "at least one key"),
        ("x", "at least one key"),
        ({"a": {"$like": "x"}}, "expected one or more of"),
        ({"a": {}}, "expected one or more of"),
        ({"a": [1]}, "is not text"),
        ({"a": {"$in": "text"}}, "expected a list"),
        ({"a": {"$in": list(range(300))}}, "at most 256"),
        ({"a": {"$exists": 1}}, "true or false"),
        ({"a": {"$gt": True}}, "all numbers or all texts"),
        ({"a": {"$gt": 1, "$lt": "x"}}, "all numbers or all texts"),
        ({"a": {"$gt": None}}, "at least one of gt"),
        ({"$or": {}}, "expected a list of filters"),
        ({"$nor": [{"a": 1}]}, "leading"),
        ({"": 1}, "is not a key"),
        ({"a..b": 1}, "is not a key"),
        ({'a"] = 1; --': 1}, "can be stored but not filtered by"),
        ({"a\\": 1}, "can be stored but not filtered by"),
        ({"a": float("nan")}, "is not text"),
        ({"a": 2**64}, "is not text"),
        ({"a": "\ud800"}, "not valid Unicode"),
        ({"a": "x\0"}, "NUL"),
        ({".".join("a" * 17): 1}, "up to 16 keys"),
        ({"$or": [{"a": 1}] * 300}, "at most 256 comparisons"),
    ],
)
def test_parse_filter_invalid_raises_item_error(raw: Any, message: str) -> None:
    with pytest.raises(ItemError, match=message):
        parse_filter(raw)


def test_parse_filter_too_deep_raises() -> None:
    raw: dict[str, Any] = {"a": 1}
    for _ in range(5000):
        raw = {"$not": raw}
    with pytest.raises(ItemError, match="32 levels deep"):
        parse_filter(raw)
