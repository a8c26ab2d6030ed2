"""A gallery: items and their vectors, each vector with the space it lives in, searchable.

gallery = Gallery.create("shop.midspan", embeddings.space)
gallery.add(embeddings, uris=paths, payloads=payloads)
gallery.search(queries, k=10, filter=Eq("brand", "acme"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from midspan import progress
from midspan.errors import SpaceMismatch, UnknownId
from midspan.gallery import rules
from midspan.gallery.engines.base import Adopts, IndexStatus
from midspan.gallery.filters import Filter, check_path, parse_filter
from midspan.gallery.info import Info, Verification, describe, verify
from midspan.gallery.location import parse_location
from midspan.gallery.records import (
    AuditEvent,
    Counts,
    Draft,
    Hit,
    Item,
    Payload,
    State,
    WriteMode,
    whoever,
    write_batches,
)
from midspan.gallery.routing import Arm, Query, as_queries, with_mapped
from midspan.gallery.rules import check_quantise, refuse_quantise
from midspan.spaces import Embeddings, FloatArray, Space

if TYPE_CHECKING:
    from midspan.gallery.catalogue.audit import Blobs
    from midspan.gallery.catalogue.work import WorkList
    from midspan.gallery.session import Session
    from midspan.gallery.tenants import Tenant

BATCH = 2000  # items in one transaction
LOCAL = ("embedded", "memory")  # engines whose catalogue is in this process: quick to count
Where = Filter | Mapping[str, Any] | None


class Gallery:
    """Items and their vectors by space, searchable. Open it once and use it from any thread.

    `Gallery.create` makes one, `Gallery.open` opens it. Locations: a file `shop.midspan`,
    `memory:`, `postgresql://…/db?table=shop`, `qdrant://host/shop`, `milvus://host/shop`.

    Example:
        >>> import numpy as np
        >>> import midspan as ms
        >>> pets = ms.Embeddings(
        ...     np.array(["cat", "kitten", "dog"]),
        ...     np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]),
        ...     ms.Space("tiny", 2),
        ... )
        >>> with ms.Gallery.create("memory:", pets.space) as gallery:
        ...     count = gallery.add(pets, payloads=[{"legs": 4}] * 3)
        ...     hits = gallery.search(pets[:1], k=2)[0]
        >>> [hit.id for hit in hits]
        ['cat', 'kitten']
    """

    def __init__(self, session: Session, *, who: str | None = None) -> None:
        self._session = session
        self.who = who or whoever()

    @classmethod
    def create(
        cls,
        location: str | Path,
        space: Space,
        *,
        quantise: str = "none",
        who: str | None = None,
    ) -> Self:
        """Empty, for vectors of this space; quantise (none, int8, binary): how small the vectors
        of a file are held in memory."""
        from midspan.gallery.session import Session

        place, chosen = parse_location(location), check_quantise(quantise)
        if chosen != "none":
            refuse_quantise(place.scheme, chosen)
        event = AuditEvent(
            who=who or whoever(), what="create", details={"space": space.fingerprint}
        )
        settings = {} if chosen == "none" else {"quantise": chosen}
        return cls(Session.create(place, space, event=event, settings=settings), who=who)

    @classmethod
    def open(
        cls, location: str | Path, *, encoder_space: Space | None = None, who: str | None = None
    ) -> Self:
        """encoder_space: of the encoder that will work on it; another one is refused."""
        from midspan.gallery.session import Session

        gallery = cls(Session.open(parse_location(location)), who=who)
        try:
            if encoder_space is not None:
                gallery.check_encoder(encoder_space)
        except BaseException:
            gallery.close()
            raise
        return gallery

    def acting_as(self, who: str) -> Gallery:
        """The same open gallery, with another name in the audit log."""
        return Gallery(self._session, who=who)

    def tenant(self, name: str) -> Tenant:
        """The part of one tenant: its own ids, and only its items in every answer."""
        from midspan.gallery.tenants import Tenant

        return Tenant(self, name)

    def close(self) -> None:
        self._session.close()

    def __repr__(self) -> str:
        """What can be said at once: of a server, what was last seen of it."""
        try:
            seen = self._session.catalogue.last_seen()
            if self._session.location.scheme in LOCAL:
                count = self._session.count_matching(None)
                return f"Gallery({self.location!r}: {count:,} items in {self.space})"
        except Exception:  # closed, or gone; printing it is no reason to fail
            return f"Gallery({self.location!r}, closed)"
        live = "" if seen is None else f": {seen.state.spaces[seen.state.live[0]]}"
        return f"Gallery({self.location!r}{live})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the gallery as a whole

    @property
    def location(self) -> str:
        """Without secrets."""
        return self._session.location.shown

    @property
    def engine(self) -> str:
        """The scheme of its location: embedded, postgresql, qdrant, milvus, memory …"""
        return self._session.location.scheme

    @property
    def state(self) -> State:
        return self._session.catalogue.snapshot().state

    @property
    def space(self) -> Space:
        """The space that new items should come in: the first of those that are live."""
        state = self.state
        return state.spaces[state.live[0]]

    @property
    def work(self) -> WorkList:
        """What lacks a vector in the target: claim, renew, release, fail, retry, prioritise."""
        return self._session.catalogue.work

    @property
    def blobs(self) -> Blobs:
        """Bytes by digest: bridges, calibrations, samples."""
        return self._session.catalogue.blobs

    @property
    def owner(self) -> str | None:
        """The application's table or collection that an adopted gallery shows, or None."""
        engine = self._session.engine
        return engine.owner if isinstance(engine, Adopts) else None

    def awaits_vectors(self, space: str) -> bool:
        """An application writes items without a vector of this space: there is always work."""
        engine = self._session.engine
        if not isinstance(engine, Adopts) or engine.owner is None:
            return False
        return engine.written_space != self._session.catalogue.snapshot().numbers.get(space)

    def check_encoder(self, space: Space) -> None:
        """Refuse an encoder whose vectors this gallery does not hold."""
        rules.check_encoder(self.state, space, shown=self.location)

    def change(self, state: State, *, event: AuditEvent) -> State:
        """Replace the version it was made from, or raise StateChanged, with a line in the log.

        A new target makes a new work list; a space is forgotten once it has no vectors left.
        """
        return self._session.states.change(state, event=event)

    def record(self, event: AuditEvent) -> None:
        """A line in the audit log."""
        self._session.catalogue.audit.record(event)

    def audit_log(self, *, limit: int = 100, what: str | None = None) -> list[AuditEvent]:
        """Who did what and when, newest first. what: lines of this kind only."""
        return self._session.catalogue.audit.read(limit=limit, what=what)

    def audit_contains(self, event: AuditEvent) -> bool:
        """Whether the log has a line of this kind and details, however long ago."""
        return self._session.catalogue.audit.contains(event)

    def count(self) -> Counts:
        return self._session.count()

    def count_matching(self, filter: Where) -> int:
        """Items that pass."""
        return self._session.count_matching(_filter(filter))

    def sequence(self, *, settled: bool = False) -> int:
        """A number that grows with each write of any process; settled: all of them are visible."""
        return self._session.catalogue.sequence(settled=settled)

    def settings(self) -> dict[str, str]:
        """What it was made with, and what its owner chose since."""
        return self._session.catalogue.settings()

    def set_setting(self, name: str, value: str, *, event: AuditEvent) -> None:
        """A choice of the owner, for every process."""
        self._session.catalogue.set_setting(name, value, event=event)

    # ---- writing

    def add(
        self,
        vectors: Embeddings,
        *,
        also: Sequence[Embeddings] = (),
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Payload] | None = None,
        show: bool = False,
    ) -> int:
        """New items, in transactions of 2,000; an id that is there already is an error.

        also: vectors of some of them in further spaces. Returns the number of items.
        """
        return self._write(vectors, also, uris, payloads, mode="add", show=show)

    def replace(
        self,
        vectors: Embeddings,
        *,
        also: Sequence[Embeddings] = (),
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Payload] | None = None,
        show: bool = False,
    ) -> int:
        """New images for items that are there: all that was known of the former ones goes."""
        return self._write(vectors, also, uris, payloads, mode="replace", show=show)

    def put(
        self,
        vectors: Embeddings,
        *,
        also: Sequence[Embeddings] = (),
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Payload] | None = None,
        show: bool = False,
    ) -> int:
        """Add or replace: may be repeated after a crash."""
        return self._write(vectors, also, uris, payloads, mode="put", show=show)

    def _write(
        self,
        vectors: Embeddings,
        also: Sequence[Embeddings],
        uris: Sequence[str | None] | None,
        payloads: Sequence[Payload] | None,
        *,
        mode: WriteMode,
        show: bool,
    ) -> int:
        batches = write_batches(vectors, also, uris=uris, payloads=payloads, size=BATCH)
        with progress.bar(mode, total=len(vectors), unit="items", show=show) as done:
            for drafts, pieces in batches:
                self.put_drafts(drafts, pieces, mode=mode)
                done(len(drafts))
        return len(vectors)

    def put_drafts(
        self, drafts: Sequence[Draft], vectors: Sequence[Embeddings], *, mode: WriteMode = "put"
    ) -> None:
        """Items with all of their vectors, whole or not at all: one transaction."""
        session = self._session
        given = with_mapped(self.state, vectors, bridge_of=session.searcher.bridge_of)
        try:
            session.items.upsert(drafts, given, mode=mode)
        except SpaceMismatch:
            if given is vectors:
                raise
            session.items.upsert(drafts, vectors, mode=mode)  # the upgrade has just ended
        session.maintenance.wrote()

    def add_missing_vectors(self, vectors: Embeddings, *, revisions: Sequence[int]) -> int:
        """Give these vectors to items that have none in the space and are still at the revision;
        the others are left alone, so that it may be repeated. Returns how many were written."""
        count = self._session.items.add_missing_vectors(vectors, revisions=revisions)
        self._session.maintenance.wrote()
        return count

    def set_payload(self, payloads: Mapping[str, Payload]) -> None:
        """Other payloads for these ids; images and vectors stay. Unknown ids are an error."""
        self._session.items.set_payload(payloads)

    def delete(self, ids: Sequence[str]) -> int:
        """Returns how many there were."""
        return self._session.items.delete(ids)

    def drop_vectors(self, space: str, *, event: AuditEvent | None = None) -> int:
        """Forget a space that is neither live nor the target; returns how many vectors it had."""
        logged = event or AuditEvent(who=self.who, what="drop vectors", details={"space": space})
        return self._session.states.drop_vectors(space, event=logged)

    # ---- reading

    def __len__(self) -> int:
        return self.count().items

    def get(self, id: str) -> Item:
        items = self.get_many([id])
        if not items:
            raise UnknownId(f"{id!r:.80} is not in {self.location}")
        return items[0]

    def get_many(self, ids: Sequence[str]) -> list[Item]:
        """Those that are there, in the order asked for."""
        return self._session.get_many(ids)

    def vectors(self, ids: Sequence[str], *, space: str) -> Embeddings:
        """Of those that have a vector in the space, in the order asked for."""
        return self._session.vectors(ids, space=space)

    def scan(
        self,
        *,
        filter: Where = None,
        missing: str | None = None,
        after: str = "",
        limit: int,
    ) -> list[Item]:
        """The next items by id, after this one; `missing` is a space they have no vector in."""
        return self._session.scan(filter=_filter(filter), missing=missing, after=after, limit=limit)

    def search(
        self,
        query: Embeddings | Sequence[Embeddings] | npt.NDArray[Any],
        *,
        k: int = 10,
        space: Space | None = None,
        filter: Where = None,
        exact: bool = False,
        threshold: float | None = None,
        arm: Arm | None = None,
        client: str | None = None,
    ) -> list[list[Hit]]:
        """The k best items for each query, best first by `rank_score`; equal ones by id.

        Queries of the old and of the new encoder are answered as the open upgrade says.

        query: Embeddings; (Q, D) numbers with their `space`; or the same queries in the old and
        in the new space (equal ids), as an upgrade in mode both requires.
        filter: a Filter or its JSON form. threshold: the lowest `score` (cosine …) that counts.
        arm: which way answers queries that came in both spaces; by default the upgrade's share of
        traffic decides, by `client` or else by the query itself.
        """
        return self.search_in(
            as_queries(query, space),
            k=k,
            filter=filter,
            exact=exact,
            threshold=threshold,
            arm=arm,
            client=client,
        )

    def search_in(
        self,
        queries: Sequence[tuple[Space, FloatArray]],
        *,
        k: int = 10,
        filter: Where = None,
        exact: bool = False,
        threshold: float | None = None,
        arm: Arm | None = None,
        client: str | None = None,
    ) -> list[list[Hit]]:
        """`search` with plain (Q, D) numbers: the same queries in each of these spaces."""
        rules.check_k(k)
        return self._session.searcher.search(
            [Query(*query) for query in queries],
            k=k,
            filter=_filter(filter),
            exact=exact,
            threshold=threshold,
            arm=arm,
            client=client,
        )

    def more_like(
        self, id: str, *, k: int = 10, filter: Where = None, exact: bool = False
    ) -> list[Hit]:
        """The k items nearest to a stored one, without itself.

        Its live vector is the query, so it is answered like a query of that vector's space; in
        mode both its vectors in both spaces, or the old one as before the upgrade.
        """
        rules.check_k(k)
        queries = self._session.stored_queries(self.get(id))
        hits = self._session.searcher.search(
            queries, k=k + 1, filter=_filter(filter), exact=exact, threshold=None
        )[0]
        return [hit for hit in hits if hit.id != id][:k]

    # ---- looking after it

    def optimise(self) -> None:
        """Do what is left to do, remove garbage, build the indexes that are due, and wait."""
        self._session.maintenance.run_once()

    def build_due_indexes(self) -> tuple[str, ...]:
        """Build them now, instead of in the background; fingerprints of their spaces."""
        return self._session.build_due_indexes()

    def indexes_due(self) -> tuple[str, ...]:
        """Fingerprints of the spaces that have grown past where an index pays and have none."""
        return self._session.indexes_due()

    def index_payload(self, path: str | tuple[str, ...]) -> None:
        """An index on this payload field ("maker.country"), for filters that few items pass."""
        self._session.index_payload(check_path(path), who=self.who)

    def index_status(self) -> dict[str, IndexStatus]:
        """Of each space, by fingerprint."""
        return self._session.index_status()

    def live_p99(self) -> float | None:
        """Seconds that searches of any process take while there is work; None if unknown."""
        beacon = self._session.beacon
        return None if beacon is None else beacon.p99()

    @property
    def shares_latency(self) -> bool:
        """Whether searchers say how long their searches take: where the catalogue is a file."""
        return self._session.beacon is not None

    def check_storage(self) -> list[str]:
        """What is wrong with the stored data itself; empty if nothing is."""
        return self._session.catalogue.database.check()

    def garbage(self) -> int:
        """Rows in the engine that belong to no item: left by writes that were interrupted."""
        return self._session.maintenance.garbage()

    def info(self) -> Info:
        return describe(self)

    def verify(self, *, show: bool = False) -> Verification:
        """Look at every item and vector; changes nothing."""
        return verify(self, show=show)


def _filter(filter: Where) -> Filter | None:
    return parse_filter(filter) if isinstance(filter, Mapping) else filter
