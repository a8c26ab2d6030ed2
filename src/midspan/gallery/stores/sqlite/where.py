"""Filters as SQL over items.payload. Paths and values travel as parameters, never in the text."""

from __future__ import annotations

from midspan.gallery.filters import And, Eq, Exists, Filter, In, Not, Or, Scalar

Sql = tuple[str, list[str | int | float]]


def where(filter: Filter) -> Sql:
    """(condition, parameters); the condition is 0 or 1, never NULL, so that NOT means not."""
    if isinstance(filter, And | Or):
        parts = [where(part) for part in filter.parts]
        word = " AND " if isinstance(filter, And) else " OR "
        text = word.join(condition for condition, _ in parts)
        return f"({text})", [value for _, values in parts for value in values]
    if isinstance(filter, Not):
        condition, values = where(filter.part)
        return f"(NOT {condition})", values
    path = "$" + "".join(f'."{part}"' for part in filter.path)
    if isinstance(filter, Exists):
        return "(json_type(payload, ?) IS NOT NULL)", [path]
    if isinstance(filter, Eq):
        return _equal(path, filter.value)
    if isinstance(filter, In):
        if not filter.values:
            return "0", []
        parts = [_equal(path, value) for value in filter.values]
        return (
            f"({' OR '.join(condition for condition, _ in parts)})",
            [value for _, values in parts for value in values],
        )
    kinds = "'text'" if isinstance(filter.bounds[0][1], str) else "'integer', 'real'"
    compare = " AND ".join(
        f"json_extract(payload, ?) {operator} ?" for operator, _ in filter.bounds
    )
    values = [value for _, bound in filter.bounds for value in (path, bound)]
    return f"(ifnull(json_type(payload, ?) IN ({kinds}), 0) AND {compare})", [path, *values]


def _equal(path: str, value: Scalar) -> Sql:
    if value is None or isinstance(value, bool):
        kind = {None: "null", True: "true", False: "false"}[value]
        return f"(ifnull(json_type(payload, ?) = '{kind}', 0))", [path]
    kinds = "'text'" if isinstance(value, str) else "'integer', 'real'"
    return (
        f"(ifnull(json_type(payload, ?) IN ({kinds}), 0) AND json_extract(payload, ?) = ?)",
        [path, path, value],
    )
