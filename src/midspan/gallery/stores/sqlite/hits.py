"""From found item numbers to hits: ids, uris and payloads come from the file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence

import numpy as np

from midspan.gallery.filters import Filter
from midspan.gallery.index.search import Found
from midspan.gallery.items import Hit
from midspan.gallery.records import Query
from midspan.gallery.stores.sqlite.where import where
from midspan.spaces import IntArray, Space

Texts = dict[int, tuple[str, str | None, str]]  # item → id, uri, payload


def read_hits(
    connection: sqlite3.Connection,
    found: Sequence[Found],
    spaces: Mapping[int, Space],
    query: Query,
) -> list[list[Hit]]:
    """Items that were deleted since, or no longer pass the filter, make room for the next ones."""
    texts = _read(connection, [one.items[: _needed(one, query.k)] for one in found], query.filter)
    hits = [_hits(one, texts, spaces, query) for one in found]
    if any(len(got) < min(query.k, len(one.items)) for got, one in zip(hits, found, strict=True)):
        texts = _read(connection, [one.items for one in found], query.filter)
        hits = [_hits(one, texts, spaces, query) for one in found]
    if query.threshold is None:
        return hits
    return [[hit for hit in got if hit.score >= query.threshold] for got in hits]


def _needed(one: Found, k: int) -> int:
    """The k best and those that equal the last of them."""
    if len(one.scores) <= k:
        return len(one.scores)
    return int(np.searchsorted(-one.scores, -one.scores[k - 1], side="right"))


def _read(
    connection: sqlite3.Connection, items: Sequence[IntArray], filter: Filter | None
) -> Texts:
    wanted = {item for part in items for item in part.tolist()}
    condition, values = ("1", []) if filter is None else where(filter)
    return {
        item: (id, uri, payload)
        for item, id, uri, payload in connection.execute(
            "SELECT item, id, uri, payload FROM items "
            f"WHERE item IN (SELECT value FROM json_each(?)) AND {condition}",
            (json.dumps(list(wanted)), *values),
        )
    }


def _hits(one: Found, texts: Texts, spaces: Mapping[int, Space], query: Query) -> list[Hit]:
    candidates = [
        (-score, *texts[item], space)
        for item, space, score in zip(
            one.items.tolist(), one.spaces.tolist(), one.scores.tolist(), strict=True
        )
        if item in texts
    ]
    candidates.sort(key=lambda candidate: candidate[:2])  # by score, then by id
    best = candidates[: query.k]
    payloads = json.loads(f"[{','.join([payload for _, _, _, payload, _ in best])}]")  # one call
    return [
        Hit(id, -score, spaces[space], uri, payload)
        for (score, id, uri, _, space), payload in zip(best, payloads, strict=True)
    ]
