"""Filters as SQL over a jsonb payload. Paths and values travel as parameters."""

from __future__ import annotations

from decimal import Decimal

from midspan.gallery.filters import And, Eq, Exists, Filter, In, Not, Or, Scalar

Sql = tuple[str, list[str | Decimal]]


def where(filter: Filter) -> Sql:
    """(condition on `i.payload`, parameters); true or false, never NULL, so that NOT means not."""
    if isinstance(filter, And | Or):
        parts = [where(part) for part in filter.parts]
        word = " AND " if isinstance(filter, And) else " OR "
        text = word.join(condition for condition, _ in parts)
        return f"({text})", [value for _, values in parts for value in values]
    if isinstance(filter, Not):
        condition, values = where(filter.part)
        return f"(NOT {condition})", values
    found = "(i.payload" + " -> %s" * len(filter.path) + ")"
    path = list(filter.path)
    if isinstance(filter, Exists):
        return f"({found} IS NOT NULL)", list(path)
    if isinstance(filter, Eq):
        return _equal(found, path, filter.value)
    if isinstance(filter, In):
        if not filter.values:
            return "false", []
        parts = [_equal(found, path, value) for value in filter.values]
        return (
            f"({' OR '.join(condition for condition, _ in parts)})",
            [value for _, values in parts for value in values],
        )
    conditions, parameters = [], list[str | Decimal]()
    for operator, bound in filter.bounds:
        condition, values = _compare(found, path, operator, bound)
        conditions.append(condition)
        parameters += values
    return f"({' AND '.join(conditions)})", parameters


def _equal(found: str, path: list[str], value: Scalar) -> Sql:
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
        return f"coalesce({found} = '{text}'::jsonb, false)", list(path)
    return _compare(found, path, "=", value)


def _compare(found: str, path: list[str], operator: str, value: str | float) -> Sql:
    """CASE, because a cast of another kind of value would be an error."""
    if isinstance(value, str):
        kind, mine = "string", f"({found} #>> '{{{{}}}}') COLLATE \"C\" {operator} %s"
        return _case(kind, found, mine), [*path, *path, value]
    mine = f"{found}::numeric {operator} %s"
    return _case("number", found, mine), [*path, *path, Decimal(repr(value))]


def _case(kind: str, found: str, condition: str) -> str:
    return f"(CASE WHEN jsonb_typeof({found}) = '{kind}' THEN {condition} ELSE false END)"
