"""Writing items, vectors and state, inside somebody's transaction."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from midspan.errors import GalleryError, UnknownId
from midspan.gallery import rules
from midspan.gallery.items import Draft, Payload, payload_json
from midspan.gallery.records import Entry, Mode, State
from midspan.gallery.stores.sqlite import schema
from midspan.gallery.stores.sqlite.rows import find, read_sequence, read_state
from midspan.spaces import Embeddings

# Items that a fill looks up and writes before it goes on to the next ones. Each has a place in five
# tables and indices; the pages of so many stay in the writer's cache until they are done with.
TOGETHER = 256


class Numbers:
    """Numbers for the writes of one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._last = read_sequence(connection)

    def take(self) -> int:
        self._last += 1
        return self._last

    def save(self) -> None:
        self.take()
        self._connection.execute("UPDATE gallery SET sequence = ?", (self._last,))


def upsert(
    connection: sqlite3.Connection,
    drafts: Sequence[Draft],
    vectors: Sequence[Embeddings],
    *,
    mode: Mode,
) -> None:
    state, numbers = read_state(connection)
    rules.check_write(state, drafts, vectors)
    present = find(connection, [draft.id for draft in drafts])
    rules.check_presence(present, drafts, mode=mode)
    sequence, now = Numbers(connection), time.time()
    _remove_vectors(connection, numbers, present.values(), sequence)
    connection.executemany(
        "UPDATE items SET uri = ?, payload = ?, revision = revision + 1, "
        "created = ifnull(?, created), changed = ?, sequence = ? WHERE item = ?",
        [
            (
                draft.uri,
                draft.json,
                draft.created,
                now if draft.changed is None else draft.changed,
                sequence.take(),
                present[draft.id],
            )
            for draft in drafts
            if draft.id in present
        ],
    )
    connection.executemany(
        "INSERT INTO items (id, uri, payload, revision, created, changed, sequence) "
        "VALUES (?, ?, ?, 1, ?, ?, ?)",
        [
            (
                draft.id,
                draft.uri,
                draft.json,
                now if draft.created is None else draft.created,
                now if draft.changed is None else draft.changed,
                sequence.take(),
            )
            for draft in drafts
            if draft.id not in present
        ],
    )
    items = find(connection, [draft.id for draft in drafts])
    for part in vectors:
        _insert_vectors(
            connection,
            numbers[part.space.fingerprint],
            [items[id] for id in part.ids.tolist()],
            part,
            sequence,
        )
    if state.target is not None:
        _put_to_work(connection, numbers[state.target], items.values())
    sequence.save()


def _insert_vectors(
    connection: sqlite3.Connection,
    number: int,
    items: Sequence[int],
    part: Embeddings,
    sequence: Numbers,
) -> None:
    rows = part.vectors.astype("<f4", copy=False)
    connection.executemany(
        f"INSERT INTO vectors_{number} (sequence, item, vector) VALUES (?, ?, ?)",
        [(sequence.take(), item, row.tobytes()) for item, row in zip(items, rows, strict=True)],
    )


def _remove_vectors(
    connection: sqlite3.Connection,
    numbers: Mapping[str, int],
    items: Collection[int],
    sequence: Numbers,
) -> None:
    """Of items that are replaced or deleted; followers learn of it from `gone`."""
    if not items:
        return
    for number in numbers.values():
        connection.executemany(
            f"DELETE FROM vectors_{number} WHERE item = ?", [(item,) for item in items]
        )
    connection.executemany("DELETE FROM work WHERE item = ?", [(item,) for item in items])
    connection.executemany(
        "INSERT INTO gone (sequence, item) VALUES (?, ?)",
        [(sequence.take(), item) for item in items],
    )
    floor = connection.execute(
        "SELECT sequence FROM gone ORDER BY sequence DESC LIMIT 1 OFFSET ?", (schema.GONE_KEPT,)
    ).fetchone()
    if floor is not None:
        connection.execute("DELETE FROM gone WHERE sequence <= ?", floor)
        connection.execute("UPDATE gallery SET floor = ?", floor)


def _put_to_work(connection: sqlite3.Connection, number: int, items: Iterable[int]) -> None:
    connection.executemany(
        f"INSERT INTO work (item) SELECT ?1 WHERE NOT EXISTS "
        f"(SELECT 1 FROM vectors_{number} WHERE item = ?1)",
        [(item,) for item in sorted(items)],
    )


def fill(connection: sqlite3.Connection, vectors: Embeddings, revisions: Sequence[int]) -> int:
    state, numbers = read_state(connection)
    rules.check_fill(state, vectors, revisions)
    space = vectors.space.fingerprint
    ids = vectors.ids.tolist()
    there = find(connection, ids)
    places = sorted((there[id], row) for row, id in enumerate(ids) if id in there)
    sequence, written = Numbers(connection), 0
    for first in range(0, len(places), TOGETHER):  # by item: no page is come back to
        part = places[first : first + TOGETHER]
        wanted = _lacking(connection, numbers[space], [item for item, _ in part])
        part = [(item, row) for item, row in part if wanted.get(item) == revisions[row]]
        items, rows = [item for item, _ in part], [row for _, row in part]
        _insert_vectors(connection, numbers[space], items, vectors[rows], sequence)
        if space == state.target:
            connection.executemany("DELETE FROM work WHERE item = ?", [(item,) for item in items])
        written += len(part)
    if written:
        sequence.save()
    return written


def _lacking(connection: sqlite3.Connection, number: int, items: Sequence[int]) -> dict[int, int]:
    """The revision of each of these items that has no vector in this space."""
    rows = connection.execute(
        "SELECT item, revision FROM items WHERE item IN (SELECT value FROM json_each(?)) "
        f"AND NOT EXISTS (SELECT 1 FROM vectors_{number} AS v WHERE v.item = items.item)",
        (json.dumps(items),),
    )
    return dict(rows.fetchall())


def annotate(connection: sqlite3.Connection, payloads: Mapping[str, Payload]) -> None:
    items = find(connection, list(payloads))
    if missing := payloads.keys() - items.keys():
        raise UnknownId(f"{len(missing)} ids are not in the gallery, first {min(missing)!r}")
    sequence, now = Numbers(connection), time.time()
    connection.executemany(
        "UPDATE items SET payload = ?, changed = ?, sequence = ? WHERE item = ?",
        [
            (payload_json(payload, of=id), now, sequence.take(), items[id])
            for id, payload in payloads.items()
        ],
    )
    sequence.save()


def delete(connection: sqlite3.Connection, ids: Sequence[str]) -> int:
    _, numbers = read_state(connection)
    items = find(connection, ids)
    sequence = Numbers(connection)
    _remove_vectors(connection, numbers, items.values(), sequence)
    connection.executemany("DELETE FROM items WHERE item = ?", [(item,) for item in items.values()])
    sequence.save()
    return len(items)


def drop(connection: sqlite3.Connection, space: str, limit: int) -> int:
    state, numbers = read_state(connection)
    rules.check_droppable(state, space)
    table = f"vectors_{numbers[space]}"
    count = connection.execute(
        f"DELETE FROM {table} WHERE sequence IN "
        f"(SELECT sequence FROM {table} ORDER BY sequence LIMIT ?)",
        (limit,),
    ).rowcount
    Numbers(connection).save()
    return int(count)


def change(connection: sqlite3.Connection, state: State, entry: Entry) -> State:
    before, numbers = read_state(connection)
    after = rules.check_change(before, state)
    for fingerprint in before.spaces.keys() - after.spaces.keys():
        table = f"vectors_{numbers[fingerprint]}"
        if left := connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]:
            raise GalleryError(
                f"{left} vectors of {before.spaces[fingerprint]} are left; drop them before the "
                "gallery forgets the space"
            )
        schema.drop_space(connection, numbers.pop(fingerprint))
    for fingerprint, space in after.spaces.items():
        if fingerprint not in numbers:
            numbers[fingerprint] = schema.add_space(connection, space)
        else:
            connection.execute(
                "UPDATE spaces SET json = ? WHERE number = ?",
                (space.to_json(), numbers[fingerprint]),
            )
    connection.execute(
        "UPDATE gallery SET version = ?, live = ?, target = ?, upgrade = ?",
        (
            after.version,
            json.dumps(after.live),
            after.target,
            None if after.upgrade is None else json.dumps(after.upgrade, ensure_ascii=False),
        ),
    )
    if after.target != before.target:
        schema.empty_work(connection)
        if after.target is not None:
            _list_work(connection, numbers[after.target])
    record(connection, entry)
    return after


def _list_work(connection: sqlite3.Connection, number: int) -> None:
    """Every item that has no vector in this space. After a rollback there mostly is none."""
    having, items = (
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in (f"vectors_{number}", "items")
    )
    if having < items:
        connection.execute(
            "INSERT INTO work (item) SELECT item FROM items WHERE NOT EXISTS (SELECT 1 FROM "
            f"vectors_{number} AS v WHERE v.item = items.item) ORDER BY item"
        )


def record(connection: sqlite3.Connection, entry: Entry) -> None:
    schema.add_line(connection, rules.check_entry(entry, when=time.time()))
    Numbers(connection).save()
