"""Writing items, vectors and state, inside somebody's transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from midspan.errors import GalleryError, UnknownId
from midspan.gallery import rules
from midspan.gallery.items import Draft, Payload, payload_json
from midspan.gallery.records import Entry, Mode, State
from midspan.gallery.stores.pgvector import schema
from midspan.gallery.stores.pgvector.rows import read_state
from midspan.gallery.stores.pgvector.server import Server
from midspan.spaces import Embeddings

if TYPE_CHECKING:
    from midspan.gallery.stores.pgvector.server import Connection


def lock_items(connection: Connection, server: Server, ids: Sequence[str]) -> dict[str, int]:
    """Numbers of those that are there. Always in the order of the ids, so that nobody deadlocks."""
    rows = connection.execute(
        server.sql("SELECT id, item FROM {items} WHERE id = ANY(%s) ORDER BY id FOR UPDATE"),
        (rules.possible(ids),),
    )
    return dict(rows.fetchall())


def upsert(
    connection: Connection,
    server: Server,
    drafts: Sequence[Draft],
    vectors: Sequence[Embeddings],
    *,
    mode: Mode,
) -> None:
    state, numbers = read_state(connection, server)
    rules.check_write(state, drafts, vectors)
    present = lock_items(connection, server, [draft.id for draft in drafts])
    rules.check_presence(present, drafts, mode=mode)
    now = time.time()
    replaced = [draft for draft in drafts if draft.id in present]
    if replaced:
        _remove_vectors(connection, server, numbers, list(present.values()))
        connection.execute(
            server.sql(
                "UPDATE {items} AS i SET uri = d.uri, payload = d.payload, "
                "revision = i.revision + 1, created = coalesce(d.created, i.created), "
                "changed = d.changed FROM unnest(%s::bigint[], %s::text[], %s::jsonb[], "
                "%s::float8[], %s::float8[]) AS d (item, uri, payload, created, changed) "
                "WHERE i.item = d.item"
            ),
            (
                [present[draft.id] for draft in replaced],
                [draft.uri for draft in replaced],
                [draft.json for draft in replaced],
                [draft.created for draft in replaced],
                [now if draft.changed is None else draft.changed for draft in replaced],
            ),
        )
    fresh = [draft for draft in drafts if draft.id not in present]
    rows = connection.execute(
        server.sql(
            "INSERT INTO {items} (id, uri, payload, revision, created, changed) "
            "SELECT id, uri, payload, 1, created, changed FROM unnest(%s::text[], %s::text[], "
            "%s::jsonb[], %s::float8[], %s::float8[]) WITH ORDINALITY "
            "AS d (id, uri, payload, created, changed, place) ORDER BY place RETURNING id, item"
        ),
        (
            [draft.id for draft in fresh],
            [draft.uri for draft in fresh],
            [draft.json for draft in fresh],
            [now if draft.created is None else draft.created for draft in fresh],
            [now if draft.changed is None else draft.changed for draft in fresh],
        ),
    )
    items = {**present, **dict(rows.fetchall())}
    for part in vectors:
        numbered = [items[id] for id in part.ids.tolist()]
        _copy_vectors(connection, server, numbers[part.space.fingerprint], numbered, part)
    if state.target is not None:
        _put_to_work(connection, server, numbers[state.target], items.values())


def _copy_vectors(
    connection: Connection, server: Server, number: int, items: Sequence[int], part: Embeddings
) -> None:
    statement = server.sql(
        "COPY {vectors} (item, vector) FROM STDIN WITH (FORMAT BINARY)",
        vectors=server.vectors(number),
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(["int8", "vector"])
        for item, row in zip(items, part.vectors, strict=True):
            copy.write_row((item, row))


def _remove_vectors(
    connection: Connection, server: Server, numbers: Mapping[str, int], items: list[int]
) -> None:
    for number in numbers.values():
        connection.execute(
            server.sql("DELETE FROM {v} WHERE item = ANY(%s)", v=server.vectors(number)), (items,)
        )
    connection.execute(server.sql("DELETE FROM {work} WHERE item = ANY(%s)"), (items,))


def _put_to_work(connection: Connection, server: Server, number: int, items: Iterable[int]) -> None:
    connection.execute(
        server.sql(
            "INSERT INTO {work} (item) SELECT item FROM unnest(%s::bigint[]) AS d (item) "
            "WHERE NOT EXISTS (SELECT 1 FROM {v} AS v WHERE v.item = d.item)",
            v=server.vectors(number),
        ),
        (list(items),),
    )


def fill(
    connection: Connection, server: Server, vectors: Embeddings, revisions: Sequence[int]
) -> int:
    state, numbers = read_state(connection, server)
    rules.check_fill(state, vectors, revisions)
    space = vectors.space.fingerprint
    ids = vectors.ids.tolist()
    there = {
        id: (item, revision)
        for id, item, revision in connection.execute(
            server.sql(
                "SELECT i.id, i.item, i.revision FROM {items} AS i WHERE i.id = ANY(%s) "
                "ORDER BY i.id FOR UPDATE"
            ),
            (ids,),
        )
    }
    filled = {
        item
        for (item,) in connection.execute(  # after the lock: now nobody else can fill them
            server.sql(
                "SELECT item FROM {v} WHERE item = ANY(%s)", v=server.vectors(numbers[space])
            ),
            ([item for item, _ in there.values()],),
        )
    }
    rows = [
        row
        for row, id in enumerate(ids)
        if id in there and there[id][1] == revisions[row] and there[id][0] not in filled
    ]
    items = [there[ids[row]][0] for row in rows]
    if rows:
        _copy_vectors(connection, server, numbers[space], items, vectors[rows])
    if rows and space == state.target:
        connection.execute(server.sql("DELETE FROM {work} WHERE item = ANY(%s)"), (items,))
    return len(rows)


def annotate(connection: Connection, server: Server, payloads: Mapping[str, Payload]) -> None:
    items = lock_items(connection, server, list(payloads))
    if missing := payloads.keys() - items.keys():
        raise UnknownId(f"{len(missing)} ids are not in the gallery, first {min(missing)!r}")
    connection.execute(
        server.sql(
            "UPDATE {items} AS i SET payload = d.payload, changed = %s "
            "FROM unnest(%s::bigint[], %s::jsonb[]) AS d (item, payload) WHERE i.item = d.item"
        ),
        (
            time.time(),
            [items[id] for id in payloads],
            [payload_json(payload, of=id) for id, payload in payloads.items()],
        ),
    )


def delete(connection: Connection, server: Server, ids: Sequence[str]) -> int:
    items = list(lock_items(connection, server, ids).values())
    connection.execute(server.sql("DELETE FROM {items} WHERE item = ANY(%s)"), (items,))
    return len(items)


def drop(connection: Connection, server: Server, space: str, limit: int) -> int:
    state, numbers = read_state(connection, server)
    rules.check_droppable(state, space)
    return connection.execute(
        server.sql(
            "DELETE FROM {v} WHERE item IN (SELECT item FROM {v} ORDER BY item LIMIT %s)",
            v=server.vectors(numbers[space]),
        ),
        (limit,),
    ).rowcount


def change(connection: Connection, server: Server, state: State, entry: Entry) -> State:
    before, numbers = read_state(connection, server)
    after = rules.check_change(before, state)
    for fingerprint in before.spaces.keys() - after.spaces.keys():
        table = server.vectors(numbers[fingerprint])
        row = connection.execute(server.sql("SELECT count(*) FROM {t}", t=table)).fetchone()
        if row is not None and row[0]:
            raise GalleryError(
                f"{row[0]} vectors of {before.spaces[fingerprint]} are left; drop them before the "
                "gallery forgets the space"
            )
        schema.drop_space(connection, server, numbers.pop(fingerprint))
    for fingerprint, space in after.spaces.items():
        if fingerprint not in numbers:
            numbers[fingerprint] = schema.add_space(connection, server, space)
        else:
            connection.execute(
                server.sql("UPDATE {spaces} SET json = %s WHERE number = %s"),
                (space.to_json(), numbers[fingerprint]),
            )
    connection.execute(
        server.sql("UPDATE {gallery} SET version = %s, live = %s, target = %s, upgrade = %s"),
        (
            after.version,
            json.dumps(after.live),
            after.target,
            None if after.upgrade is None else json.dumps(after.upgrade, ensure_ascii=False),
        ),
    )
    if after.target != before.target:
        connection.execute(
            server.sql("TRUNCATE {work}")
        )  # a rollback has no time for a million rows
        if after.target is not None:
            connection.execute(
                server.sql(
                    "INSERT INTO {work} (item) SELECT item FROM {items} AS i WHERE NOT EXISTS "
                    "(SELECT 1 FROM {v} AS v WHERE v.item = i.item)",
                    v=server.vectors(numbers[after.target]),
                )
            )
    record(connection, server, entry)
    return after


def record(connection: Connection, server: Server, entry: Entry) -> None:
    schema.add_line(connection, server, rules.check_entry(entry, when=time.time()))
