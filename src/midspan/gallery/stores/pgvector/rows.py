"""Reading items and state, inside somebody's transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from midspan.gallery.filters import Filter
from midspan.gallery.items import INTEGERS, Item
from midspan.gallery.records import Counts, State
from midspan.gallery.rules import check_cursor, possible
from midspan.gallery.stores.pgvector.server import Server
from midspan.gallery.stores.pgvector.where import where
from midspan.spaces import Embeddings, Space

if TYPE_CHECKING:
    from midspan.gallery.stores.pgvector.server import Connection

COLUMNS = "i.item, i.id, i.uri, i.payload::text, i.revision, i.created, i.changed"


def parse(text: str) -> dict[str, Any]:
    """jsonb writes large floats as long integers; we know that no integer is beyond 64 bits."""
    payload: dict[str, Any] = json.loads(text, parse_int=_number)
    return payload


def _number(digits: str) -> int | float:
    value = int(digits)
    return value if -INTEGERS <= value < INTEGERS else float(digits)


def read_state(connection: Connection, server: Server) -> tuple[State, dict[str, int]]:
    """The state, and the number of each space's table."""
    row = connection.execute(
        server.sql(
            "SELECT version, live::text, target, upgrade::text, ARRAY(SELECT number FROM {spaces} "
            "ORDER BY number), ARRAY(SELECT json FROM {spaces} ORDER BY number) FROM {gallery}"
        )
    ).fetchone()
    assert row is not None
    version, live, target, upgrade, order, texts = row
    spaces = [Space.from_json(text) for text in texts]
    state = State(
        version=version,
        spaces={space.fingerprint: space for space in spaces},
        live=tuple(json.loads(live)),
        target=target,
        upgrade=None if upgrade is None else parse(upgrade),
    )
    numbers = {space.fingerprint: number for space, number in zip(spaces, order, strict=True)}
    return state, numbers


def read_items(
    connection: Connection,
    server: Server,
    numbers: dict[str, int],
    condition: str,
    values: Sequence[Any],
) -> list[tuple[int, Item]]:
    """(number, item) of the rows of `items AS i` that the condition (and order) selects."""
    having = ", ".join(
        f"EXISTS (SELECT 1 FROM {server.vectors(number)} AS v WHERE v.item = i.item)"
        for number in numbers.values()
    )
    rows = connection.execute(
        server.sql(f"SELECT {COLUMNS}, ARRAY[{having}] FROM {{items}} AS i WHERE {condition}"),
        values,
    )
    return [
        (
            item,
            Item(
                id=id,
                uri=uri,
                payload=parse(payload),
                revision=revision,
                created=created,
                changed=changed,
                spaces=tuple(space for space, there in zip(numbers, has, strict=True) if there),
            ),
        )
        for item, id, uri, payload, revision, created, changed, has in rows
    ]


def scan_items(
    connection: Connection,
    server: Server,
    numbers: dict[str, int],
    *,
    filter: Filter | None,
    missing: str | None,
    after: str,
    limit: int,
) -> list[Item]:
    condition, values = ("true", []) if filter is None else where(filter)
    if missing is not None:
        condition += (
            f" AND NOT EXISTS (SELECT 1 FROM {server.vectors(numbers[missing])} AS m "
            "WHERE m.item = i.item)"
        )
    found = read_items(
        connection,
        server,
        numbers,
        f"i.id > %s AND {condition} ORDER BY i.id LIMIT %s",
        (check_cursor(after), *values, limit),
    )
    return [item for _, item in found]


def read_vectors(
    connection: Connection, server: Server, number: int, ids: Sequence[str], space: Space
) -> Embeddings:
    rows: dict[str, Any] = dict(
        connection.execute(
            server.sql(
                "SELECT i.id, v.vector FROM {items} AS i JOIN {vectors} AS v USING (item) "
                "WHERE i.id = ANY(%s)",
                vectors=server.vectors(number),
            ),
            (possible(ids),),
            binary=True,
        ).fetchall()
    )
    found = [id for id in dict.fromkeys(ids) if id in rows]
    matrix = np.array([as_row(rows[id]) for id in found], dtype=np.float32)
    return Embeddings(
        ids=np.array(found, dtype=np.str_), vectors=matrix.reshape(-1, space.dim), space=space
    )


def as_row(vector: Any) -> Any:
    """pgvector's own type, or NumPy's, by its version."""
    return vector.to_numpy() if hasattr(vector, "to_numpy") else vector


def count_all(
    connection: Connection, server: Server, state: State, numbers: dict[str, int]
) -> Counts:
    def number_of(query: str) -> int:
        row = connection.execute(server.sql(f"SELECT count(*) FROM {query}")).fetchone()
        assert row is not None
        return int(row[0])

    items = number_of("{items}")
    stored = {space: number_of(server.vectors(number)) for space, number in numbers.items()}
    live: dict[str, int] = {}
    for place, space in enumerate(state.live):
        if place == 0 or stored[space] == 0:
            live[space] = stored[space]
        elif sum(live.values()) == items:
            live[space] = 0
        else:
            condition = not_in(server, [numbers[other] for other in state.live[:place]])
            live[space] = number_of(f"{server.vectors(numbers[space])} AS v WHERE {condition}")
    failed = number_of("{work} WHERE failed")
    return Counts(
        items=items,
        stored=stored,
        live=live,
        without=items - sum(live.values()),
        pending=number_of("{work}") - failed,
        failed=failed,
    )


def not_in(server: Server, better: Sequence[int]) -> str:
    """The item of `v` has no vector in any of these spaces."""
    parts = [
        f"NOT EXISTS (SELECT 1 FROM {server.vectors(number)} AS b{number} "
        f"WHERE b{number}.item = v.item)"
        for number in better
    ]
    return " AND ".join(parts) or "true"
