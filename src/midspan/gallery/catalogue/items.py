"""Items and which vectors they have: statements inside somebody's transaction.

What a backfill does for each batch goes to the driver (`ask`): Core spends as long on building,
caching and fetching it as SQLite takes to answer.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Table,
    Text,
    any_,
    bindparam,
    delete,
    func,
    select,
    update,
)

from midspan.gallery.catalogue.tables import Tables
from midspan.gallery.catalogue.where import where
from midspan.gallery.filters import Filter
from midspan.gallery.records import INTEGERS, Counts, Draft, Item, State
from midspan.gallery.rules import check_cursor, valid_ids


class ItemRow(NamedTuple):
    """A revision of an item that is there."""

    row: int
    revision: int
    created: float


def parse(text: str) -> dict[str, Any]:
    """jsonb writes large floats as long integers; we know that no integer is beyond 64 bits."""
    payload: dict[str, Any] = _DECODER.decode(text)
    return payload


def _number(digits: str) -> int | float:
    value = int(digits)
    return value if -INTEGERS <= value < INTEGERS else float(digits)


_DECODER = json.JSONDecoder(parse_int=_number)  # json.loads would make one at each call


def one_of(tables: Tables, column: ColumnElement[Any], values: Collection[Any]) -> Any:
    """`column` is one of these: one parameter, however many they are."""
    many = list(values)
    if tables.dialect == "sqlite":
        each = func.json_each(json.dumps(many, ensure_ascii=False)).table_valued("value")
        return column.in_(select(each.c.value))
    kind = Text() if isinstance(column.type, Text) else BigInteger()
    return column == any_(bindparam(None, many, type_=ARRAY(kind)))


def ask(
    connection: Connection, tables: Tables, statement: str, *values: Any
) -> list[tuple[Any, ...]]:
    """The rows of one statement of the driver. `{p}` begins the names of tables, `?` is a value,
    `{among}` means that the column before it is one of a list of values."""
    sqlite = tables.dialect == "sqlite"
    among = "IN (SELECT value FROM json_each(?))" if sqlite else "= ANY(?)"
    text = statement.format(p=tables.prefix, among=among)
    given = [
        json.dumps(one, ensure_ascii=False) if sqlite and isinstance(one, list) else one
        for one in values
    ]
    raw = connection.connection.driver_connection
    assert raw is not None
    cursor = raw.execute(text if sqlite else text.replace("?", "%s"), given)
    return cursor.fetchall() if cursor.description else []


# ---- reading -------------------------------------------------------------------------------------


def find(
    connection: Connection, tables: Tables, ids: Sequence[str], *, lock: bool = False
) -> dict[str, ItemRow]:
    """Those that are there. Locks are taken in the order of the ids, so that nobody deadlocks."""
    statement = 'SELECT id, "row", revision, created FROM "{p}items" WHERE id {among}'
    if lock and tables.dialect == "postgresql":
        statement += " ORDER BY id FOR UPDATE"
    records = ask(connection, tables, statement, valid_ids(ids))
    return {id: ItemRow(row, revision, created) for id, row, revision, created in records}


def lacking(
    connection: Connection, tables: Tables, ids: Sequence[str], number: int, *, lock: bool
) -> dict[str, tuple[int, int]]:
    """(row, revision) of those that are there and have no vector in this space."""
    statement = (
        'SELECT i.id, i."row", i.revision FROM "{p}items" i WHERE i.id {among} AND NOT EXISTS '
        '(SELECT 1 FROM "{p}stored" s WHERE s.space = ? AND s."row" = i."row")'
    )
    if lock and tables.dialect == "postgresql":
        statement += " ORDER BY i.id FOR UPDATE OF i"
    records = ask(connection, tables, statement, valid_ids(ids), number)
    return {id: (row, revision) for id, row, revision in records}


def read_items(
    connection: Connection,
    tables: Tables,
    numbers: Mapping[str, int],
    condition: ColumnElement[bool],
    *,
    limit: int | None = None,
) -> dict[int, Item]:
    """Items by row; by id if there is a limit."""
    items = tables.items.c
    statement = select(
        items.row, items.id, items.uri, items.payload, items.revision, items.created, items.changed
    ).where(condition)
    if limit is not None:
        statement = statement.order_by(items.id).limit(limit)
    return _items(connection, tables, numbers, connection.execute(statement).fetchall())


def items_of_rows(
    connection: Connection, tables: Tables, numbers: Mapping[str, int], rows: list[int]
) -> dict[int, Item]:
    payload = "payload" if tables.dialect == "sqlite" else "payload::text"
    statement = (
        f'SELECT "row", id, uri, {payload}, revision, created, changed FROM "{{p}}items" '
        'WHERE "row" {among}'
    )
    return _items(connection, tables, numbers, ask(connection, tables, statement, rows))


def _items(
    connection: Connection, tables: Tables, numbers: Mapping[str, int], rows: Sequence[Any]
) -> dict[int, Item]:
    having = presence(connection, tables, numbers.values(), [row[0] for row in rows])
    load = json.loads if tables.dialect == "sqlite" else parse
    return {
        row: Item(
            id=id,
            uri=uri,
            payload=load(payload),
            revision=revision,
            created=created,
            changed=changed,
            spaces=tuple(space for space, number in numbers.items() if (number, row) in having),
        )
        for row, id, uri, payload, revision, created, changed in rows
    }


def presence(
    connection: Connection, tables: Tables, numbers: Iterable[int], rows: Collection[int]
) -> set[tuple[int, int]]:
    """The (space, row) of these that have a vector."""
    if not rows:
        return set()
    among = ", ".join(str(int(number)) for number in numbers) or "NULL"
    statement = (
        f'SELECT space, "row" FROM "{{p}}stored" WHERE space IN ({among}) AND "row" {{among}}'
    )
    return set(ask(connection, tables, statement, list(rows)))


def scan(
    connection: Connection,
    tables: Tables,
    numbers: Mapping[str, int],
    *,
    filter: Filter | None,
    missing: str | None,
    after: str,
    limit: int,
) -> list[Item]:
    items, stored = tables.items.c, tables.stored.c
    condition = (items.id > check_cursor(after)) & where(filter, tables)
    if missing is not None:
        having = select(stored.row).where(stored.space == numbers[missing], stored.row == items.row)
        condition &= ~having.exists()
    return list(read_items(connection, tables, numbers, condition, limit=limit).values())


def count_all(
    connection: Connection, tables: Tables, state: State, numbers: Mapping[str, int]
) -> Counts:
    def number_of(table: Any, *conditions: Any) -> int:
        statement = select(func.count()).select_from(table).where(*conditions)
        return int(connection.execute(statement).scalar_one())

    items = number_of(tables.items)
    one, better = tables.stored.alias("v"), tables.stored.alias("b")
    stored = {
        space: number_of(one, one.c.space == number) if number is not None else 0
        for space, number in numbers.items()
    }
    live: dict[str, int] = {}
    for place, space in enumerate(state.live):
        if place == 0 or stored[space] == 0:
            live[space] = stored[space]
        elif sum(live.values()) == items:
            live[space] = 0  # the better spaces have them all
        else:
            before = [numbers[other] for other in state.live[:place]]
            superseded = select(better.c.row).where(
                better.c.space.in_(before), better.c.row == one.c.row
            )
            live[space] = number_of(one, one.c.space == numbers[space], ~superseded.exists())
    failed = number_of(tables.work, tables.work.c.failed)
    return Counts(
        items=items,
        stored=stored,
        live=live,
        without=items - sum(live.values()),
        pending=0 if state.target is None else number_of(tables.work) - failed,
        failed=failed,
    )


# ---- writing -------------------------------------------------------------------------------------


def insert_items(
    connection: Connection,
    tables: Tables,
    drafts: Sequence[Draft],
    *,
    rows: Mapping[str, int],
    before: Mapping[str, ItemRow],
    now: float,
    sequence: int,
) -> None:
    """New rows; the former ones of replaced items (`before`) are removed first."""
    remove_rows(connection, tables, [known.row for known in before.values()])
    known = [before.get(draft.id) for draft in drafts]
    columns: dict[str, list[Any]] = {
        "row": [rows[draft.id] for draft in drafts],
        "id": [draft.id for draft in drafts],
        "uri": [draft.uri for draft in drafts],
        "payload": [draft.json for draft in drafts],
        "revision": [1 if one is None else one.revision + 1 for one in known],
        "created": [
            _given(draft.created, now if one is None else one.created)
            for draft, one in zip(drafts, known, strict=True)
        ],
        "changed": [_given(draft.changed, now) for draft in drafts],
        "sequence": [sequence] * len(drafts),
    }
    insert_columns(connection, tables, tables.items, columns)


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def insert_columns(
    connection: Connection, tables: Tables, table: Table, columns: Mapping[str, list[Any]]
) -> None:
    """Many rows in one statement of the driver: Core looks at each value of each row."""
    names = ", ".join(f'"{name}"' for name in columns)
    if tables.dialect == "sqlite":
        marks = ", ".join("?" * len(columns))
        values = list(zip(*columns.values(), strict=True))
        if values:
            connection.exec_driver_sql(
                f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})', values
            )
        return
    kinds = {"TEXT": "text", "JSONB": "jsonb", "BIGINT": "int8", "INTEGER": "int4"}
    arrays = ", ".join(
        f"%s::{kinds.get(str(table.c[name].type).split()[0], 'float8')}[]" for name in columns
    )
    connection.exec_driver_sql(
        f'INSERT INTO "{table.name}" ({names}) SELECT * FROM unnest({arrays})',
        tuple(columns.values()),
    )


def remove_rows(connection: Connection, tables: Tables, rows: Collection[int]) -> None:
    """Items with all that is known of them; their vectors are the engine's."""
    if not rows:
        return
    numbers = connection.execute(select(tables.spaces.c.number)).scalars().all()
    stored = tables.stored.c
    connection.execute(
        delete(tables.stored).where(stored.space.in_(numbers), one_of(tables, stored.row, rows))
    )
    for table in (tables.work, tables.items):
        connection.execute(delete(table).where(one_of(tables, table.c.row, rows)))


def insert_stored(connection: Connection, tables: Tables, number: int, rows: Iterable[int]) -> None:
    many = list(rows)
    insert_columns(connection, tables, tables.stored, {"space": [number] * len(many), "row": many})


def set_payloads(
    connection: Connection,
    tables: Tables,
    payloads: Mapping[int, str],
    *,
    now: float,
    sequence: int,
) -> None:
    items = tables.items
    connection.execute(
        update(items)
        .where(items.c.row == bindparam("at"))
        .values(payload=bindparam("text"), changed=now, sequence=sequence),
        [{"at": row, "text": text} for row, text in payloads.items()],
    )


def payload_texts(
    connection: Connection, tables: Tables, rows: Collection[int]
) -> dict[int, tuple[str, int]]:
    """(payload as JSON text, sequence of its last change) by row."""
    items = tables.items.c
    records = connection.execute(
        select(items.row, items.payload, items.sequence).where(one_of(tables, items.row, rows))
    )
    return {row: (payload, sequence) for row, payload, sequence in records}
