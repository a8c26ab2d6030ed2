"""Reading points: by key, all of them in portions, or the next in the order of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from midspan.gallery.stores.qdrant.connection import Connection
from midspan.gallery.stores.qdrant.keys import field, point_id, span
from midspan.gallery.stores.qdrant.order import next_keys
from midspan.gallery.stores.qdrant.points import as_row, wanted
from midspan.gallery.stores.qdrant.where import as_filter, between, equal
from midspan.gallery.stores.turns.conditions import Among, Condition, Within
from midspan.gallery.stores.turns.engine import Row

PAGE = 4000  # rows of one answer


def by_key(
    server: Connection, collection: str, keys: Sequence[str | int], fields: Sequence[str]
) -> list[Row]:
    rows: list[Row] = []
    for start in range(0, len(keys), PAGE):
        ids = [point_id(key) for key in keys[start : start + PAGE]]
        with server.errors():
            found = server.client.retrieve(
                collection, ids, **wanted(("pk", *fields)), **server.reading()
            )
        rows += [as_row(point, fields) for point in found]
    return rows


def scroll(
    server: Connection,
    collection: str,
    where: Sequence[Condition],
    fields: Sequence[str],
    *,
    start: int | str | None,
    limit: int,
) -> list[Row]:
    rows: list[Row] = []
    lists = [one for one in where if isinstance(one, Among) and server.local and not limit]
    condition = as_filter([one for one in where if one not in lists])
    among = [(one.field, set(one.values)) for one in lists]  # it would go through them
    asked = [*fields, *(name for name, _ in among)]
    while True:
        with server.errors():
            found, start = server.client.scroll(
                collection,
                scroll_filter=condition,
                offset=start,
                limit=min(PAGE, limit - len(rows)) if limit else PAGE,
                **wanted(asked),
                **server.reading(),
            )
        rows += [
            as_row(point, fields)
            for point in found
            if all(point.payload[name] in values for name, values in among)
        ]
        if start is None or (limit and len(rows) >= limit):
            return rows


def keys_after(
    server: Connection, collection: str, after: str, where: Sequence[Condition], limit: int
) -> list[str]:
    def read(fixed: Sequence[int], above: int, most: int) -> list[str]:
        level = len(fixed)
        condition = as_filter(where)
        shared = [equal(field(place), number) for place, number in enumerate(fixed)]
        more = [*shared, between(field(level), gt=above)]
        with server.errors():
            found, _ = server.client.scroll(
                collection,
                scroll_filter=_both(condition, more),
                limit=most,
                order_by=field(level),
                with_payload=["pk"],
                **server.reading(),
            )
        return [point.payload["pk"] for point in found]

    prefix = next((one.prefix for one in where if isinstance(one, Within)), "")
    return next_keys(read, after=after, limit=limit, shared=span(prefix)[0])


def _both(condition: Any, more: Sequence[Any]) -> Any:
    from qdrant_client import models

    return models.Filter(must=[*(condition.must if condition else []), *more])
