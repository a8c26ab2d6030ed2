"""Hand the new vectors over to the application: its column holds them, under its old name.

A column is added, filled in chunks and indexed while the application works. The switch itself is
one transaction that renames two columns. The former column and the gallery's own copy are kept
until `midspan upgrade forget`, so that taking it back renames them again and computes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection

from midspan import progress
from midspan.errors import GalleryError
from midspan.gallery.adoption.binding import SETTING, FormerColumn, TableBinding, quoted
from midspan.gallery.adoption.postgres_adopt import (
    CHUNK,
    LOCK_WAIT,
    capture_for,
    driver,
    engine_of,
    save_binding,
    with_patience,
)
from midspan.gallery.adoption.postgres_capture import Capture
from midspan.gallery.adoption.postgres_table import vector_index
from midspan.gallery.catalogue.catalogue import Catalogue
from midspan.gallery.engines.pgvector_index import CLASSES, HALF_DIMS, INDEX_DIMS
from midspan.gallery.gallery import Gallery
from midspan.gallery.records import AuditEvent, Record
from midspan.spaces import Space


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The application's `column` now holds the new vectors, `former` the old ones."""

    table: str
    column: str
    former: str
    rows: int
    index: str | None


def hand_over_table(gallery: Gallery, *, show: bool = False) -> HandedOver:
    """After `upgrade finish`: the application reads and writes the new space's vectors."""
    engine, catalogue = engine_of(gallery), gallery._session.catalogue
    binding, number, space = engine.binding(), *_finished(gallery)
    column = f"{binding.vector}_{number}"[:60]
    rows = int(catalogue.ask(f"SELECT count(*) FROM {binding.relation}")[0][0])
    _check(gallery, binding)
    _add_column(catalogue, binding, column, space)
    _fill(catalogue, binding, number, column, space, show=show, rows=rows)
    index = _build_index(gallery, binding, column, space)
    former = f"{binding.vector}_before"[:63]
    event = AuditEvent(
        who=gallery.who,
        what="hand over",
        details={"space": space.fingerprint, "table": binding.table, "former": former},
    )

    def switch(connection: Connection) -> None:
        run = driver(connection).execute
        run(f"LOCK TABLE {binding.relation} IN ACCESS EXCLUSIVE MODE")
        _copy(
            connection,
            catalogue=catalogue,
            binding=binding,
            number=number,
            column=column,
            space=space,
            some="a.other IS NULL",
        )
        _check_filled(run, gallery, binding, column)
        ((not_null,),) = run(
            "SELECT attnotnull FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s",
            (binding.relation, binding.vector),
        ).fetchall()
        if not_null:
            run(f"{_alter(binding)} ALTER COLUMN {quoted(binding.vector)} DROP NOT NULL")
            run(f"{_alter(binding)} ALTER COLUMN {quoted(column)} SET NOT NULL")
        after = dataclasses.replace(
            binding.with_columns({**binding.columns, number: binding.vector}),
            former=FormerColumn(former, not_null),
        )
        if (old := binding.number) is not None:
            after = after.with_columns({**after.columns, old: former})
        _rename(run, binding, {binding.vector: former, column: binding.vector})
        run(f"ALTER TABLE {_own(catalogue, f'vectors_{number}')} RENAME TO "
            f"{_own(catalogue, f'side_{number}')}")  # fmt: skip
        _swap_digests(run, catalogue)
        capture = capture_for(connection, after, catalogue=catalogue, space=space)
        run(capture.view(number, after.vector, indexed=None if index is None else index[1]))
        _renew(connection, catalogue, capture, after)
        catalogue.audit.write(connection, event)

    _write(catalogue, switch)
    state = gallery.state
    if state.target is not None:  # the application brings new vectors itself from now on
        settled = AuditEvent(who=gallery.who, what="hand over settled", details={})
        gallery.change(dataclasses.replace(state, target=None), event=settled)
    return HandedOver(
        binding.shown, binding.vector, former, rows, None if index is None else index[0]
    )


def take_back_table(gallery: Gallery) -> int:
    """The application's column holds the former vectors again, at once.

    Rows that it wrote since have a new vector only: they come back without one. Returns how many.
    """
    engine, catalogue = engine_of(gallery), gallery._session.catalogue
    binding = engine.binding()
    if binding.former is None:
        raise GalleryError(f"{gallery.location}: nothing was handed over, or it is forgotten")
    number, former = binding.number, binding.former
    assert number is not None
    old = next(one for one, column in binding.columns.items() if column == former.column)
    space = catalogue.snapshot().spaces[old]
    event = AuditEvent(
        who=gallery.who, what="hand over taken back", details={"space": space.fingerprint}
    )

    def switch(connection: Connection) -> int:
        run = driver(connection).execute
        adopted, stored = _own(catalogue, "adopted"), _own(catalogue, "stored")
        side, held = _own(catalogue, f"side_{number}"), _own(catalogue, f"vectors_{number}")
        run(f"LOCK TABLE {binding.relation} IN ACCESS EXCLUSIVE MODE")
        run(
            f"UPDATE {binding.relation} t SET {quoted(former.column)} = NULL FROM {adopted} a "
            f"WHERE t.{quoted(binding.id)} = a.key AND t.{quoted(former.column)} IS NOT NULL AND "
            f'NOT EXISTS (SELECT 1 FROM {stored} s WHERE s.space = {old} AND s."row" = a."row")'
        )
        run(f'DELETE FROM {side} s WHERE NOT EXISTS (SELECT 1 FROM {held} v WHERE v."row" = '
            's."row")')  # fmt: skip
        run(f'INSERT INTO {side} ("row", vector) SELECT "row", vector FROM {held} v WHERE NOT '
            f'EXISTS (SELECT 1 FROM {side} s WHERE s."row" = v."row")')  # fmt: skip
        run(f"DROP VIEW {held}")
        run(f"ALTER TABLE {side} RENAME TO {held}")
        run(f"{_alter(binding)} DROP COLUMN {quoted(binding.vector)}")
        _rename(run, binding, {former.column: binding.vector})
        ((without,),) = run(
            f"SELECT count(*) FROM {binding.relation} WHERE {quoted(binding.vector)} IS NULL"
        ).fetchall()
        if former.not_null and not without:
            run(f"{_alter(binding)} ALTER COLUMN {quoted(binding.vector)} SET NOT NULL")
        after = dataclasses.replace(binding.with_columns({old: binding.vector}), former=None)
        capture = capture_for(connection, after, catalogue=catalogue, space=space)
        run(f"UPDATE {adopted} a SET other = {capture.digest()} FROM {binding.relation} t WHERE "
            f"other IS NULL AND t.{quoted(binding.id)} = a.key")  # fmt: skip
        _swap_digests(run, catalogue)
        _renew(connection, catalogue, capture, after)
        catalogue.audit.write(connection, event)
        return int(without)

    without: int = _write(catalogue, switch)
    return without


def handed_over(gallery: Gallery) -> bool:
    text = gallery.settings().get(SETTING)
    if text is None or gallery.engine != "postgresql":
        return False
    return TableBinding.from_json(text).former is not None


def release_column(
    connection: Connection, catalogue: Catalogue, binding: TableBinding, number: int
) -> None:
    """The gallery forgets a space that is a column: the application's own stays, a former goes."""
    run, column = driver(connection).execute, binding.columns[number]
    run(f"DROP VIEW IF EXISTS {_own(catalogue, f'vectors_{number}')}")
    rest = {one: name for one, name in binding.columns.items() if one != number}
    after = binding.with_columns(rest)
    if binding.former is not None and column == binding.former.column:
        run(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
        run(f"{_alter(binding)} DROP COLUMN {quoted(column)}")
        for one in rest:
            run(f"DROP TABLE IF EXISTS {_own(catalogue, f'side_{one}')}")
        run(f"UPDATE {_own(catalogue, 'adopted')} SET other = NULL WHERE other IS NOT NULL")
        after = dataclasses.replace(after, former=None)
    spaces = catalogue.read(connection).spaces
    space = spaces[after.number] if after.number is not None else next(iter(spaces.values()))
    capture = capture_for(connection, after, catalogue=catalogue, space=space)
    _renew(connection, catalogue, capture, after)


# ---- before the switch, online -------------------------------------------------------------------


def _finished(gallery: Gallery) -> tuple[int, Space]:
    """(number, space) of what is handed over."""
    snapshot, binding = gallery._session.catalogue.snapshot(), engine_of(gallery).binding()
    state, record = snapshot.state, Record.of(snapshot.state)
    number = snapshot.numbers[state.live[0]]
    if number in binding.columns:
        raise GalleryError(
            f"{gallery.location}: {binding.shown} holds the live vectors already; expected an "
            "upgrade that was finished"
        )
    counts = gallery.count()
    if len(state.live) > 1 or (record is not None and record.phase != "finished"):
        raise GalleryError(
            f"{gallery.location}: the upgrade is not finished; run midspan upgrade finish first"
        )
    if counts.without:
        raise GalleryError(
            f"{gallery.location}: {counts.without:,} items have no new vector yet; run midspan "
            "upgrade run first"
        )
    return number, snapshot.spaces[number]


def _check(gallery: Gallery, binding: TableBinding) -> None:
    """The table must be ours to change, and nothing may read the column by another name."""
    catalogue = gallery._session.catalogue
    ((owns,),) = catalogue.ask(
        "SELECT pg_has_role(relowner, 'MEMBER') FROM pg_class WHERE oid = to_regclass(%s)",
        (binding.relation,),
    )
    if not owns:
        raise GalleryError(
            f"{gallery.location}: only the owner of {binding.shown} may add and rename its "
            "columns; hand over as that role"
        )
    views = catalogue.ask(
        "SELECT DISTINCT v.oid::regclass::text FROM pg_depend d JOIN pg_rewrite r ON r.oid = "
        "d.objid JOIN pg_class v ON v.oid = r.ev_class JOIN pg_attribute a ON a.attrelid = "
        "d.refobjid AND a.attnum = d.refobjsubid WHERE d.refobjid = to_regclass(%s) AND a.attname "
        "= %s AND v.relname NOT LIKE %s",
        (binding.relation, binding.vector, catalogue.name("vectors_%").replace("_", r"\_")),
    )
    if views:
        names = ", ".join(name for (name,) in views)
        raise GalleryError(
            f"{gallery.location}: {names} reads {binding.vector} and would show the former vectors "
            "after the hand-over; drop it, hand over, and make it again"
        )


def _add_column(catalogue: Catalogue, binding: TableBinding, column: str, space: Space) -> None:
    kind = f"{binding.vector_type}({int(space.dim)})"

    def add(connection: Connection) -> None:
        run = driver(connection).execute
        there = run(
            "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s",
            (binding.relation, column),
        ).fetchall()
        if not there:  # else a hand-over was stopped, and continues
            run(f"UPDATE {_own(catalogue, 'adopted')} SET other = NULL WHERE other IS NOT NULL")
            run(f"{_alter(binding)} ADD COLUMN {quoted(column)} {kind}")

    _write(catalogue, add)


def _fill(
    catalogue: Catalogue,
    binding: TableBinding,
    number: int,
    column: str,
    space: Space,
    *,
    show: bool,
    rows: int,
) -> None:
    with progress.bar("hand over", total=rows, unit="rows", show=show) as done:
        for first, last, count in _chunks(catalogue):
            some = f'a."row" BETWEEN {first} AND {last}'
            step = partial(
                _copy,
                catalogue=catalogue,
                binding=binding,
                number=number,
                column=column,
                space=space,
                some=some,
            )
            with_patience(catalogue, partial(catalogue.write, step))
            done(count)


def _chunks(catalogue: Catalogue) -> Iterator[tuple[int, int, int]]:
    """(first row, last row, how many)."""
    adopted, after = _own(catalogue, "adopted"), -1
    while True:
        records = catalogue.ask(
            f'SELECT min("row"), max("row"), count(*) FROM (SELECT "row" FROM {adopted} WHERE '
            f'"row" > {after} ORDER BY "row" LIMIT {CHUNK}) AS next'
        )
        first, last, count = records[0]
        if not count:
            return
        yield first, last, count
        after = last


def _copy(
    connection: Connection,
    *,
    catalogue: Catalogue,
    binding: TableBinding,
    number: int,
    column: str,
    space: Space,
    some: str,
) -> None:
    """Some new vectors into the application's table, with the digests that go with them."""
    run, held = driver(connection).execute, f"v.vector::{binding.vector_type}"
    adopted, id = _own(catalogue, "adopted"), f"t.{quoted(binding.id)}"
    run(
        f"UPDATE {binding.relation} t SET {quoted(column)} = {held} FROM {adopted} a JOIN "
        f'{_own(catalogue, f"vectors_{number}")} v ON v."row" = a."row" WHERE {id} = a.key AND '
        f"t.{quoted(column)} IS DISTINCT FROM {held} AND {some}"
    )
    capture = capture_for(connection, binding, catalogue=catalogue, space=space)
    run(
        f"UPDATE {adopted} a SET other = {capture.digest(column)} FROM {binding.relation} t WHERE "
        f"{id} = a.key AND t.{quoted(column)} IS NOT NULL AND {some}"
    )


def _build_index(
    gallery: Gallery, binding: TableBinding, column: str, space: Space
) -> tuple[str, str] | None:
    """(name, kind) of an index like the one on the former column; None if that had none."""
    catalogue, engine = gallery._session.catalogue, engine_of(gallery)
    ((oid,),) = catalogue.ask("SELECT to_regclass(%s)::oid::bigint", (binding.relation,))
    kind = binding.vector_type
    former, _ = vector_index(catalogue.database, oid, binding.vector, kind)
    if former is None or space.dim > (INDEX_DIMS if kind == "vector" else HALF_DIMS):
        return None
    index, _ = vector_index(catalogue.database, oid, column, kind)
    name = index.name if index is not None else f"{binding.table[:40]}_{column[:15]}_idx"
    if index is None or not index.whole:
        ((options,),) = catalogue.ask(
            "SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE relname = %s AND "
            "relnamespace = to_regnamespace(%s)",
            (former.name, quoted(binding.schema)),
        )
        engine.build_on(
            f"{quoted(binding.schema)}.{quoted(name)}" if index is not None else None,
            f"CREATE INDEX CONCURRENTLY {quoted(name)} ON {binding.relation} USING {former.method} "
            f"({quoted(column)} {kind}_{CLASSES[space.metric]})"
            + (f" WITH ({options})" if options else ""),
        )
    return name, kind


# ---- in the transaction of the switch ------------------------------------------------------------


def _check_filled(run: Any, gallery: Gallery, binding: TableBinding, column: str) -> None:
    ((lacking,),) = run(
        f"SELECT count(*) FROM {binding.relation} WHERE {quoted(column)} IS NULL"
    ).fetchall()
    if lacking:
        raise GalleryError(
            f"{gallery.location}: {lacking:,} rows of {binding.shown} have no new vector; run "
            "midspan upgrade run, then hand over again"
        )


def _swap_digests(run: Any, catalogue: Catalogue) -> None:
    adopted = _own(catalogue, "adopted")
    for before, after in (("digest", "moving"), ("other", "digest"), ("moving", "other")):
        run(f"ALTER TABLE {adopted} RENAME COLUMN {before} TO {after}")
    run(f"ALTER TABLE {adopted} ALTER COLUMN other DROP NOT NULL")
    run(f"ALTER TABLE {adopted} ALTER COLUMN digest SET NOT NULL")


def _rename(run: Any, binding: TableBinding, names: dict[str, str]) -> None:
    for before, after in names.items():
        run(f"{_alter(binding)} RENAME COLUMN {quoted(before)} TO {quoted(after)}")


def _renew(
    connection: Connection, catalogue: Catalogue, capture: Capture, binding: TableBinding
) -> None:
    for statement in capture.functions():
        driver(connection).execute(statement)
    save_binding(connection, catalogue, binding)


def _write(catalogue: Catalogue, action: Any) -> Any:
    return with_patience(catalogue, lambda: catalogue.write(action, exclusive=True))


def _own(catalogue: Catalogue, table: str) -> str:
    return quoted(catalogue.name(table))


def _alter(binding: TableBinding) -> str:
    return f"ALTER TABLE {binding.relation}"
