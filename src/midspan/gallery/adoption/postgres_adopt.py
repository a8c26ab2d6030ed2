"""Adopt a table in place, keep up with it, and let go of it.

The gallery's own tables are made next to the table, in one transaction with the triggers, so that
no write of the application is missed; then the rows that were there are taken in chunks. Stopped in
between, the same call continues: taking a row twice does no harm.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, select, update

from midspan import progress
from midspan.errors import GalleryError, StoreError
from midspan.gallery.adoption.binding import SETTING, TableBinding, quoted
from midspan.gallery.adoption.postgres_capture import Capture
from midspan.gallery.adoption.postgres_table import TableColumns, chosen_metric, find_table, look_at
from midspan.gallery.adoption.survey import Reconciled
from midspan.gallery.catalogue.catalogue import FIRST_SPACE, Catalogue
from midspan.gallery.catalogue.database import exists, open_database, version_table
from midspan.gallery.gallery import Gallery
from midspan.gallery.location import parse_location
from midspan.gallery.records import AuditEvent, whoever
from midspan.spaces import Metric, Space

if TYPE_CHECKING:
    from midspan.gallery.engines.pgvector import PgvectorEngine

CHUNK = 5000  # rows in one transaction
LOCK_WAIT = "250ms"  # of each attempt at the table's lock: the application waits behind it
LOCK_SECONDS = 30.0  # for all attempts

Result = TypeVar("Result")


def adopt_table(
    location: str,
    table: str,
    columns: TableColumns,
    *,
    space_name: str,
    metric: Metric | None = None,
    space: Space | None = None,
    who: str | None = None,
    show: bool = False,
) -> Gallery:
    """A gallery over this table; `space` instead of its name, if the encoder is known."""
    place = parse_location(location)
    shown = place.shown
    if place.scheme != "postgresql":
        raise GalleryError(
            f"{shown}: a table is adopted by a gallery in the same database, whose tables stand "
            "next to it; expected postgresql://…/DATABASE?table=NAME"
        )
    with closing(open_database(place.catalogue, shown=shown)) as database:
        foreign = find_table(database, table, columns, shown=shown)
        kind, _ = chosen_metric(foreign, metric)
        dim = foreign.dim or look_at(database, foreign, metric=metric, shown=shown).dim
    adopted = space or Space(name=space_name, dim=dim, metric=kind)
    if (adopted.dim, adopted.metric) != (dim, kind):
        raise GalleryError(
            f"{shown}: {adopted} has {adopted.dim} dimensions by {adopted.metric}, "
            f"{foreign.binding.shown} {dim} by {kind}; name the encoder that made these vectors"
        )
    binding = foreign.binding.with_columns({FIRST_SPACE: columns.vector})
    details = {"space": adopted.fingerprint, "table": f"{binding.schema}.{binding.table}"}
    event = AuditEvent(who=who or whoever(), what="adopt", details=details)
    usable = foreign.index if foreign.index and foreign.metric == kind else None
    if _begun(location, binding):
        gallery = Gallery.open(location, who=who)
        return _filled(gallery, show=show)

    def install(connection: Connection) -> None:
        capture = capture_for(connection, binding, catalogue=catalogue, space=adopted)
        run = driver(connection).execute
        for statement in capture.tables():
            run(statement)
        run(
            capture.view(
                FIRST_SPACE, binding.vector, indexed=None if usable is None else usable.kind
            )
        )
        for statement in capture.functions():
            run(statement)
        run(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
        for statement in capture.triggers():
            run(statement)

    with Catalogue.creating(place.catalogue, adopted, shown=shown) as catalogue:
        settings = {"engine": "postgresql", SETTING: binding.to_json()}
        with_patience(
            catalogue,
            lambda: catalogue.first_write(adopted, event=event, settings=settings, then=install),
        )
    return _filled(Gallery.open(location, who=who), show=show)


def _begun(location: str, binding: TableBinding) -> bool:
    """An adoption of the same table was stopped in between."""
    place = parse_location(location).catalogue
    with closing(Catalogue._on(place, shown=binding.shown)) as catalogue:
        if not exists(catalogue.database, catalogue.tables):
            return False
        text = catalogue.settings().get(SETTING)
    return text is not None and TableBinding.from_json(text) == binding


def _filled(gallery: Gallery, *, show: bool) -> Gallery:
    try:
        reconcile_table(gallery, show=show)
    except BaseException:
        gallery.close()
        raise
    return gallery


def reconcile_table(gallery: Gallery, *, show: bool = False) -> Reconciled:
    """Compare every key of the table with the gallery, and mend what differs.

    Only needed where triggers did not fire: replication roles, a restored table, triggers that
    somebody disabled. Changes that a trigger could not apply in time are applied too.
    """
    engine, catalogue = engine_of(gallery), gallery._session.catalogue
    done = catch_up(catalogue)
    binding = engine.binding()
    adopted, key = quoted(catalogue.name("adopted")), quoted(binding.id)
    total = int(catalogue.ask(f"SELECT count(*) FROM {binding.relation}")[0][0])
    with progress.bar("reconcile", total=total, unit="rows", show=show) as moved:
        for source, name in ((binding.relation, key), (adopted, "key")):
            last: Any = None
            while keys := _next_keys(catalogue, source, name, last):
                last = keys[-1]
                done += apply(catalogue, keys)
                if source == binding.relation:
                    moved(len(keys))
    gallery._session.maintenance.wrote()
    return done


def _next_keys(catalogue: Catalogue, source: str, name: str, last: Any) -> list[Any]:
    text = f"SELECT {name} FROM {source}"
    if last is None:
        records = catalogue.ask(f"{text} ORDER BY {name} LIMIT {CHUNK}")
    else:
        text = text.replace("%", "%%")
        name = name.replace("%", "%%")
        records = catalogue.ask(f"{text} WHERE {name} > %s ORDER BY {name} LIMIT {CHUNK}", (last,))
    return [key for (key,) in records]


def apply(catalogue: Catalogue, keys: Sequence[Any]) -> Reconciled:
    """Make the gallery equal to the table for these keys."""

    def write(connection: Connection) -> Reconciled:
        name = quoted(catalogue.name("apply"))
        ((counts,),) = driver(connection).execute(f"SELECT {name}(%s)", (list(keys),)).fetchall()
        return Reconciled(*counts)

    return with_patience(catalogue, lambda: catalogue.write(write))


def catch_up(catalogue: Catalogue) -> Reconciled:
    """Apply what triggers noted but could not apply, oldest first."""
    missed, done = quoted(catalogue.name("missed")), Reconciled()
    while True:
        notes = catalogue.ask(f"SELECT line, keys FROM {missed} ORDER BY line LIMIT 20")
        if not notes:
            return done
        for line, keys in notes:
            for start in range(0, len(keys), CHUNK):
                done += apply(catalogue, keys[start : start + CHUNK])
            with catalogue.writing() as connection:
                driver(connection).execute(f"DELETE FROM {missed} WHERE line = %s", (line,))


def detach_table(gallery: Gallery, *, keep: str | None = None) -> int:
    """Remove everything of ours; the table is as it was. Closes the gallery.

    keep: the name of a new table (id, vector) for the vectors of the newest space that the
    application's column does not hold. Returns how many vectors were kept.
    """
    engine, session = engine_of(gallery), gallery._session
    catalogue, binding = session.catalogue, engine.binding()
    snapshot = catalogue.snapshot()
    own = [number for number in snapshot.spaces if number not in binding.columns]
    if keep is not None and not own:
        raise GalleryError(
            f"{gallery.location}: there are no vectors to keep: {binding.shown} holds all of them"
        )

    def write(connection: Connection) -> int:
        run, count = driver(connection).execute, 0
        space = snapshot.spaces[min(snapshot.spaces)]
        capture = capture_for(connection, binding, catalogue=catalogue, space=space)
        run(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
        for statement in capture.remove():
            run(statement)
        if keep is not None:
            count = run(
                f"CREATE TABLE {quoted(keep)} AS SELECT a.key AS {quoted(binding.id)}, v.vector "
                f"FROM {capture.name(f'vectors_{max(own)}')} v JOIN {capture.name('adopted')} a "
                'ON a."row" = v."row"'
            ).rowcount
            run(f"ALTER TABLE {quoted(keep)} ADD PRIMARY KEY ({quoted(binding.id)})")
        for number in snapshot.spaces:
            kind = "VIEW" if number in binding.columns else "TABLE"
            run(f"DROP {kind} IF EXISTS {capture.name(f'vectors_{number}')}")
            run(f"DROP TABLE IF EXISTS {capture.name(f'side_{number}')}")
        for table in ("adopted", "missed"):
            run(f"DROP TABLE {capture.name(table)}")
        catalogue.tables.metadata.drop_all(connection, checkfirst=False)
        run(f"DROP TABLE {quoted(version_table(catalogue.tables))}")
        return int(count)

    session.maintenance.stop()
    count = with_patience(catalogue, lambda: catalogue.write(write, exclusive=True))
    gallery.close()
    return count


# ---- shared with the hand-over -------------------------------------------------------------------


def engine_of(gallery: Gallery) -> PgvectorEngine:
    from midspan.gallery.engines.pgvector import PgvectorEngine

    engine = gallery._session.engine
    if not isinstance(engine, PgvectorEngine) or SETTING not in gallery.settings():
        raise GalleryError(
            f"{gallery.location} is no adopted gallery: its items are its own; expected one that "
            "was made by midspan gallery adopt"
        )
    return engine


def capture_for(
    connection: Connection, binding: TableBinding, *, catalogue: Catalogue, space: Space
) -> Capture:
    statement = (
        "SELECT current_schema(), (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON "
        "n.oid = e.extnamespace WHERE e.extname = 'vector'), (SELECT atttypmod FROM pg_attribute "
        "WHERE attrelid = to_regclass(%s) AND attname = %s)"
    )
    values = (binding.relation, binding.vector)
    ((own, extension, modifier),) = driver(connection).execute(statement, values).fetchall()
    return Capture(
        binding,
        prefix=catalogue.tables.prefix,
        schema=own,
        extension=extension,
        dim=space.dim,
        metric=space.metric,
        untyped=modifier is None or modifier < 0,
    )


def save_binding(connection: Connection, catalogue: Catalogue, binding: TableBinding) -> None:
    """Every open gallery reads it again."""
    import json

    gallery = catalogue.tables.gallery
    before = connection.execute(select(gallery.c.settings)).scalar_one()
    after = {**json.loads(before), SETTING: binding.to_json()}
    connection.execute(update(gallery).values(settings=json.dumps(after)))
    catalogue.new_version(connection)
    catalogue.advance(connection)


def driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def with_patience(catalogue: Catalogue, action: Callable[[], Result]) -> Result:
    """Again while the application holds the table; each attempt is short, so that it can work."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return action()
        except StoreError as error:
            if not catalogue.database.contended(error):
                raise
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{catalogue.shown}: the application's table was locked for "
                    f"{LOCK_SECONDS:.0f} s and nothing was changed; end its long transactions "
                    "(pg_stat_activity shows them), then repeat the step"
                ) from error
        time.sleep(random.uniform(0.05, 0.3))
