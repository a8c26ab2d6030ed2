"""A collection of an application on a vector server: what a gallery needs to read it in place.

Servers have no triggers. The catalogue's table `adopted` says which row of the gallery is which key
of the collection, with a digest of its vector and address; a reconcile pass compares them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    quoted_name,
    select,
    update,
)

from midspan import progress
from midspan.errors import GalleryError, ItemError
from midspan.gallery.adoption.binding import SETTING
from midspan.gallery.adoption.files import VectorBatch
from midspan.gallery.adoption.load import survey_file
from midspan.gallery.adoption.survey import Reconciled, Survey, condition_of
from midspan.gallery.catalogue import items, outbox, work
from midspan.gallery.catalogue.catalogue import Catalogue
from midspan.gallery.engines import engine_class
from midspan.gallery.filters import Filter
from midspan.gallery.gallery import Gallery
from midspan.gallery.location import parse_location
from midspan.gallery.records import AuditEvent, Draft, whoever
from midspan.spaces import FloatArray, Metric, Space

if TYPE_CHECKING:
    from midspan.gallery.adoption.collection_engine import CollectionEngine
    from midspan.gallery.catalogue.tables import Tables
    from midspan.gallery.location import Location

FIRST = 1  # the number of a gallery's first space: the application's vectors


@dataclass(frozen=True, slots=True)
class CollectionBinding:
    """`vector`: the name of its vectors, "" if they have none. `number`: of their space."""

    collection: str
    vector: str
    number: int
    uri: str | None = None
    payload: tuple[str, ...] = ()
    watermark: str | None = None  # a number in the payload that grows with each write

    @property
    def shown(self) -> str:
        return f"collection {self.collection}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        raw: dict[str, Any] = json.loads(text)
        raw["payload"] = tuple(raw["payload"])
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class NearestPoints:
    """What a server found: keys, vectors, and the score of the last; None if that is all."""

    keys: list[str]
    vectors: FloatArray  # (n, D)
    cut: float | None


class ForeignCollection(Protocol):
    """One class for each kind of server; reads only."""

    shown: str
    rows: int
    dim: int
    metric: Metric | None
    space: Space | None

    def parts(self, size: int, *, since: float | None = None) -> Iterator[VectorBatch]:
        """All points, or those whose watermark is at least so much."""
        ...

    def fetch(self, keys: Sequence[str]) -> tuple[list[str], FloatArray]: ...

    def search(
        self, query: FloatArray, *, limit: int, filter: Filter | None, exact: bool
    ) -> NearestPoints:
        """May pass more than the filter does, never less."""
        ...

    def watermark(self) -> float | None:
        """The highest there is; None if the collection has none."""
        ...

    def index(self) -> str | None:
        """The kind of its index, if it has one."""
        ...

    def close(self) -> None: ...


def open_collection(location: Location, binding: CollectionBinding) -> ForeignCollection:
    """On the server of the gallery's own vectors."""
    if location.scheme.partition("+")[0] == "qdrant":
        from midspan.gallery.adoption.server_collections import QdrantCollection

        return QdrantCollection(location, binding)
    if location.scheme.partition("+")[0] == "milvus":
        from midspan.gallery.adoption.server_collections import MilvusCollection

        return MilvusCollection(location, binding)
    raise GalleryError(
        f"{location.shown}: collections are adopted in place in Qdrant and Milvus; expected "
        "qdrant://HOST/NAME?catalogue=… or milvus://…"
    )


def link_table(tables: Tables) -> Table:
    big = BigInteger().with_variant(Integer(), "sqlite")
    return Table(
        f"{tables.prefix}adopted",
        MetaData(),
        Column(quoted_name("row", True), big, primary_key=True, autoincrement=False),
        Column("key", Text, nullable=False, unique=True),
        Column("digest", Text, nullable=False),
        Column("seen", big, nullable=False),  # the last pass that found it
    )


def digest_of(vector: FloatArray, uri: str | None) -> str:
    """Of the image and its vector: what a new vector is made from."""
    digest = hashlib.blake2b(vector.tobytes(), digest_size=16)
    digest.update(b"\0" if uri is None else b"\1" + uri.encode())
    return digest.hexdigest()


def only(payload: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: payload[name] for name in names if payload.get(name) is not None}


def highest_mark(payloads: Sequence[Mapping[str, Any]], binding: CollectionBinding) -> float | None:
    if (field := binding.watermark) is None:
        return None
    values: list[Any] = [payload.get(field) for payload in payloads]
    return max((float(value) for value in values if type(value) in (int, float)), default=None)


# ---- adopt a collection on a vector server, keep up with it by passes over it, and let go of it --

PART = 1000  # points compared in one transaction
SINCE = "adopted_since"  # setting: up to which watermark everything is known (see Watermark)
OVERLAP = 60.0  # seconds: a write may become visible so much later than another with a higher mark


class Watermark(NamedTuple):
    """Read from `since` on. `highest` was first seen `at`; after the overlap it is the next one."""

    since: float
    highest: float
    at: float

    @classmethod
    def noted(cls, catalogue: Catalogue) -> Watermark | None:
        if (text := catalogue.settings().get(SINCE)) is None:
            return None
        raw = json.loads(text)
        return cls(*raw) if isinstance(raw, list) else cls(raw, raw, 0.0)

    def seen(self, highest: float, *, now: float) -> Watermark:
        over = now - self.at >= OVERLAP
        if not over or (highest == self.highest == self.since):
            return self
        return Watermark(self.highest, highest, now)


def survey_collection(location: str, binding: CollectionBinding) -> Survey:
    """Reads every point; writes nothing."""
    import dataclasses

    with contextlib.closing(open_collection(parse_location(location), binding)) as source:
        survey = survey_file(source, metric=source.metric)
        return dataclasses.replace(
            survey, in_place=True, index=source.index(), metric_from="of the collection"
        )


def adopt_collection(
    location: str,
    binding: CollectionBinding,
    *,
    space_name: str,
    space: Space | None = None,
    who: str | None = None,
    show: bool = False,
) -> Gallery:
    """A gallery over this collection; the catalogue is a file or PostgreSQL."""
    place = parse_location(location)
    with contextlib.closing(open_collection(place, binding)) as source:
        metric: Metric = source.metric or "cosine"
        adopted = space or Space(name=space_name, dim=source.dim, metric=metric)
        if (adopted.dim, adopted.metric) != (source.dim, metric):
            raise GalleryError(
                f"{place.shown}: {adopted} has {adopted.dim} dimensions by {adopted.metric}, "
                f"{binding.shown} {source.dim} by {metric}; name the encoder of these vectors"
            )
    details = {"space": adopted.fingerprint, "collection": binding.collection}
    event = AuditEvent(who=who or whoever(), what="adopt", details=details)
    with Catalogue.creating(place.catalogue, adopted, shown=place.shown) as catalogue:
        kind = engine_class(place.scheme)
        with contextlib.closing(kind.create(place, catalogue)) as engine:
            recorded = dict(engine.recorded)
        link = link_table(catalogue.tables)
        catalogue.first_write(
            adopted,
            event=event,
            settings={"engine": place.scheme, **recorded, SETTING: binding.to_json()},
            then=link.metadata.create_all,
        )
    gallery = Gallery.open(location, who=who)
    try:
        reconcile_collection(gallery, show=show)
    except BaseException:
        gallery.close()
        raise
    return gallery


def reconcile_collection(gallery: Gallery, *, show: bool = False) -> Reconciled:
    """Compare every point with the gallery, and mend what differs; what was deleted goes too."""
    engine, catalogue = engine_of(gallery), gallery._session.catalogue
    mark = engine.source.watermark()
    link, done = link_table(catalogue.tables), Reconciled()
    with catalogue.reading() as connection:
        last = connection.execute(select(func.max(link.c.seen))).scalar_one()
    number = max(_moment(), (last or 0) + 1)  # of this pass
    with progress.bar("reconcile", total=engine.source.rows, unit="points", show=show) as moved:
        for part in engine.source.parts(PART):
            done += apply(catalogue, engine.binding, part, seen=number)
            moved(len(part.ids))
    while unseen := _unseen(catalogue, number):
        there = set(engine.source.fetch(list(unseen.values()))[0])
        done += Reconciled(removed=_remove(catalogue, unseen, there, seen=number))
    if mark is not None:
        _note_mark(gallery, mark)
    gallery._session.queue.drain()
    gallery._session.maintenance.wrote()
    return done


def catch_up(catalogue: Catalogue, engine: CollectionEngine) -> Reconciled:
    """What was written since the last look, by the watermark; nothing without one."""
    done, mark = Reconciled(), Watermark.noted(catalogue)
    if engine.binding.watermark is None or mark is None:
        return done
    highest = mark.highest
    for part in engine.source.parts(PART, since=mark.since):
        done += apply(catalogue, engine.binding, part, seen=None)
        highest = highest if part.mark is None else max(highest, part.mark)
    if (after := mark.seen(highest, now=time.time())) != mark:
        catalogue.set_setting(SINCE, json.dumps(after), event=None)
    return done


def detach_collection(gallery: Gallery) -> None:
    """Remove the gallery's own collections and its catalogue; closes it."""
    from midspan.gallery.catalogue.database import version_table

    engine, session = engine_of(gallery), gallery._session
    catalogue, path = session.catalogue, session.catalogue.path
    session.maintenance.stop()
    for number in catalogue.snapshot().spaces:
        engine.drop_space(number)
    if path is None:

        def write(connection: Connection) -> None:
            link_table(catalogue.tables).metadata.drop_all(connection)
            catalogue.tables.metadata.drop_all(connection, checkfirst=False)
            connection.exec_driver_sql(f'DROP TABLE "{version_table(catalogue.tables)}"')

        catalogue.write(write, exclusive=True)
    gallery.close()
    if path is not None:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def engine_of(gallery: Gallery) -> CollectionEngine:
    from midspan.gallery.adoption.collection_engine import CollectionEngine

    engine = gallery._session.engine
    if not isinstance(engine, CollectionEngine):
        raise GalleryError(f"{gallery.location} has not adopted a collection")
    return engine


def _moment() -> int:
    """Milliseconds: what is noted during a pass is newer than its beginning, and stays."""
    return int(time.time() * 1000)


def _note_mark(gallery: Gallery, mark: float) -> None:
    event = AuditEvent(who=gallery.who, what="reconcile", details={"watermark": mark})
    gallery.set_setting(SINCE, json.dumps(Watermark(mark, mark, time.time())), event=event)


# ---- one part, one transaction -------------------------------------------------------------------


class Differences(NamedTuple):
    """Between some points and the gallery."""

    fresh: list[str]  # keys
    replaced: list[str]
    annotated: dict[int, str]  # payloads by row

    def __bool__(self) -> bool:
        return any(map(len, self))


def apply(
    catalogue: Catalogue, binding: CollectionBinding, part: VectorBatch, *, seen: int | None
) -> Reconciled:
    """Make the gallery equal to these points. Ids that no gallery can keep are passed over.

    seen: the pass that finds them; without one nothing is written while nothing differs.
    """
    drafts, digests, places = dict[str, Draft](), dict[str, str](), dict[str, int]()
    for place, key in enumerate(part.ids):
        uri = None if part.uris is None else part.uris[place]
        payload = {} if part.payloads is None else part.payloads[place]
        with contextlib.suppress(ItemError):
            drafts[key] = Draft(id=key, uri=uri, payload=payload)
            digests[key], places[key] = digest_of(part.vectors[place], uri), place
    tables, link = catalogue.tables, link_table(catalogue.tables)

    def write(connection: Connection) -> Reconciled:
        changes = _differences(connection, catalogue, drafts, digests)
        if moved := [*changes.fresh, *changes.replaced]:
            sequence = catalogue.advance(connection)
            rows = _rewrite(connection, catalogue, [drafts[key] for key in moved], sequence)
            connection.execute(delete(link).where(items.one_of(tables, link.c.key, moved)))
            connection.execute(
                insert(link),
                [
                    {"row": rows[key], "key": key, "digest": digests[key], "seen": seen or moment}
                    for key in moved
                ],
            )
            space = catalogue.read(connection).spaces.get(binding.number)
            if space is not None:
                _, usable, _ = condition_of(part.vectors, space.metric)
                old = [rows[key] for key in moved if usable[places[key]]]
                items.insert_stored(connection, tables, binding.number, old)
            _list_work(connection, catalogue, list(rows.values()))
        if changes.annotated:
            sequence = catalogue.advance(connection)
            items.set_payloads(
                connection, tables, changes.annotated, now=time.time(), sequence=sequence
            )
            outbox.add(connection, tables, "payload", changes.annotated)
        if seen is not None:
            connection.execute(
                update(link).where(items.one_of(tables, link.c.key, list(drafts))).values(seen=seen)
            )
        return Reconciled(len(changes.fresh), len(changes.replaced), len(changes.annotated), 0)

    moment = _moment()
    if seen is None:
        with catalogue.reading() as connection:
            if not _differences(connection, catalogue, drafts, digests):
                return Reconciled()
    return catalogue.write(write)


def _differences(
    connection: Connection,
    catalogue: Catalogue,
    drafts: Mapping[str, Draft],
    digests: Mapping[str, str],
) -> Differences:
    tables, link = catalogue.tables, link_table(catalogue.tables)
    known = {
        key: (row, digest)
        for key, row, digest in connection.execute(
            select(link.c.key, link.c.row, link.c.digest).where(
                items.one_of(tables, link.c.key, list(drafts))
            )
        )
    }
    texts = items.payload_texts(connection, tables, [row for row, _ in known.values()])
    replaced = [key for key in known if known[key][1] != digests[key]]
    annotated = {
        known[key][0]: drafts[key].json
        for key in known.keys() - set(replaced)
        if items.parse(texts[known[key][0]][0]) != drafts[key].payload
    }
    return Differences([key for key in drafts if key not in known], replaced, annotated)


def _rewrite(
    connection: Connection, catalogue: Catalogue, drafts: Sequence[Draft], sequence: int
) -> dict[str, int]:
    """New rows for these items; the vectors of the former ones are noted for removal."""
    tables = catalogue.tables
    before = items.find(connection, tables, [draft.id for draft in drafts], lock=True)
    taken = catalogue.take_rows(connection, len(drafts))
    rows = {draft.id: row for draft, row in zip(drafts, taken, strict=True)}
    items.insert_items(
        connection, tables, drafts, rows=rows, before=before, now=time.time(), sequence=sequence
    )
    outbox.add(connection, tables, "delete", [known.row for known in before.values()])
    return rows


def _list_work(connection: Connection, catalogue: Catalogue, rows: list[int]) -> None:
    snapshot, tables = catalogue.read(connection), catalogue.tables
    if snapshot.state.target is None:
        return
    number = snapshot.numbers[snapshot.state.target]
    having = {row for _, row in items.presence(connection, tables, [number], rows)}
    work.add(connection, tables, [row for row in rows if row not in having])


def _unseen(catalogue: Catalogue, number: int) -> dict[int, str]:
    """Rows and keys that a whole pass did not find; some at a time."""
    link = link_table(catalogue.tables)
    with catalogue.reading() as connection:
        statement = select(link.c.row, link.c.key).where(link.c.seen < number).limit(PART)
        return dict(connection.execute(statement).fetchall())


def _remove(catalogue: Catalogue, unseen: Mapping[int, str], there: set[str], *, seen: int) -> int:
    """Those that are gone; a pass does not meet a point that is deleted and written again."""
    tables, link = catalogue.tables, link_table(catalogue.tables)

    def write(connection: Connection) -> int:
        def still(rows: list[int]) -> Any:
            return items.one_of(tables, link.c.row, rows) & (link.c.seen < seen)

        met = [row for row, key in unseen.items() if key in there]
        connection.execute(update(link).where(still(met)).values(seen=seen))
        gone = [row for row, key in unseen.items() if key not in there]
        rows = list(connection.execute(select(link.c.row).where(still(gone))).scalars())
        if rows:
            items.remove_rows(connection, tables, rows)
            connection.execute(delete(link).where(items.one_of(tables, link.c.row, rows)))
            outbox.add(connection, tables, "delete", rows)
            catalogue.advance(connection)
        return len(rows)

    return catalogue.write(write)
