"""Reading items and state from the file, inside somebody's transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np

from midspan.gallery.filters import Filter
from midspan.gallery.items import Item
from midspan.gallery.records import Counts, State
from midspan.gallery.rules import check_cursor, possible
from midspan.gallery.stores.sqlite.where import where
from midspan.spaces import Embeddings, FloatArray, Space

COLUMNS = "item, id, uri, payload, revision, created, changed"


def read_state(connection: sqlite3.Connection) -> tuple[State, dict[str, int]]:
    """The state, and the number of each space's table."""
    version, live, target, upgrade = connection.execute(
        "SELECT version, live, target, upgrade FROM gallery"
    ).fetchone()
    spaces, numbers = {}, {}
    for number, fingerprint, text in connection.execute(
        "SELECT number, fingerprint, json FROM spaces ORDER BY number"
    ):
        spaces[fingerprint] = Space.from_json(text)
        numbers[fingerprint] = number
    state = State(
        version=version,
        spaces=spaces,
        live=tuple(json.loads(live)),
        target=target,
        upgrade=None if upgrade is None else json.loads(upgrade),
    )
    return state, numbers


def read_sequence(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT sequence FROM gallery").fetchone()[0])


def find(connection: sqlite3.Connection, ids: Sequence[str]) -> dict[str, int]:
    """The number of each id that is there."""
    rows = connection.execute(
        "SELECT id, item FROM items WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(possible(ids), ensure_ascii=False),),
    )
    return dict(rows.fetchall())


def read_items(
    connection: sqlite3.Connection, numbers: dict[str, int], items: Sequence[int]
) -> dict[int, Item]:
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM items WHERE item IN (SELECT value FROM json_each(?))",
        (json.dumps(list(items)),),
    ).fetchall()
    return with_spaces(connection, numbers, rows)


def scan_items(
    connection: sqlite3.Connection,
    numbers: dict[str, int],
    *,
    filter: Filter | None,
    missing: str | None,
    after: str,
    limit: int,
) -> list[Item]:
    condition, values = ("1", []) if filter is None else where(filter)
    if missing is not None:
        condition += (
            f" AND NOT EXISTS (SELECT 1 FROM vectors_{numbers[missing]} AS v "
            "WHERE v.item = items.item)"
        )
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM items WHERE id > ? AND {condition} ORDER BY id LIMIT ?",
        (check_cursor(after), *values, limit),
    ).fetchall()
    return list(with_spaces(connection, numbers, rows).values())


def with_spaces(
    connection: sqlite3.Connection, numbers: dict[str, int], rows: list[tuple[Any, ...]]
) -> dict[int, Item]:
    """Items by number, in the order of the rows."""
    wanted = json.dumps([row[0] for row in rows])
    having = {
        fingerprint: {
            item
            for (item,) in connection.execute(
                f"SELECT item FROM vectors_{number} WHERE item IN (SELECT value FROM json_each(?))",
                (wanted,),
            )
        }
        for fingerprint, number in numbers.items()
    }
    items: dict[int, Item] = {}
    for item, id, uri, payload, revision, created, changed in rows:
        items[item] = Item(
            id=id,
            uri=uri,
            payload=json.loads(payload),
            revision=revision,
            created=created,
            changed=changed,
            spaces=tuple(space for space, those in having.items() if item in those),
        )
    return items


def read_vectors(
    connection: sqlite3.Connection, number: int, ids: Sequence[str], space: Space
) -> Embeddings:
    rows = dict(
        connection.execute(
            f"SELECT items.id, v.vector FROM items JOIN vectors_{number} AS v USING (item) "
            "WHERE items.id IN (SELECT value FROM json_each(?))",
            (json.dumps(possible(ids), ensure_ascii=False),),
        ).fetchall()
    )
    found = [id for id in dict.fromkeys(ids) if id in rows]
    return Embeddings(
        ids=np.array(found, dtype=np.str_),
        vectors=as_matrix([rows[id] for id in found], space.dim),
        space=space,
    )


def as_matrix(blobs: Sequence[bytes], dim: int) -> FloatArray:
    return (
        np.frombuffer(b"".join(blobs), dtype="<f4").reshape(-1, dim).astype(np.float32, copy=False)
    )


def count_all(connection: sqlite3.Connection, state: State, numbers: dict[str, int]) -> Counts:
    def number_of(query: str) -> int:
        return int(connection.execute(f"SELECT count(*) FROM {query}").fetchone()[0])

    items = number_of("items")
    stored = {space: number_of(f"vectors_{number}") for space, number in numbers.items()}
    live: dict[str, int] = {}
    for place, space in enumerate(state.live):
        if place == 0 or stored[space] == 0:
            live[space] = stored[space]
        elif sum(live.values()) == items:
            live[space] = 0  # the better spaces have them all
        else:
            better = " AND ".join(
                f"NOT EXISTS (SELECT 1 FROM vectors_{numbers[other]} AS b WHERE b.item = v.item)"
                for other in state.live[:place]
            )
            live[space] = number_of(f"vectors_{numbers[space]} AS v WHERE {better}")
    failed = number_of("work WHERE failed = 1")
    return Counts(
        items=items,
        stored=stored,
        live=live,
        without=items - sum(live.values()),
        pending=number_of("work") - failed,
        failed=failed,
    )
