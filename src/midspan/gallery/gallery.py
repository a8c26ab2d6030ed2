"""A gallery: items and their vectors, each vector with the space it lives in, searchable.

gallery = Gallery.create("shop.midspan", embeddings.space)
gallery.add(embeddings, uris=paths, payloads=payloads)
gallery.search(queries, k=10, filter=Eq("brand", "acme"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from midspan import progress
from midspan.errors import GalleryError, SpaceMismatch, UnknownId
from midspan.gallery import rules
from midspan.gallery.batches import write_batches
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
        """Make an empty gallery for vectors of this space.

        Args:
            location: A file `shop.midspan`, `memory:`, `postgresql://…/db?table=shop`,
                `qdrant://host/shop` or `milvus://host/shop`.
            space: Of the vectors that it will hold.
            quantise: How small the vectors of a file are held in memory: "none", "int8", "binary".
            who: The name in the audit log; default: the user and host.

        Returns:
            The open gallery.

        Raises:
            GalleryError: There is one already, or the location cannot be used.
        """
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
        """Open a gallery; close it, or use it in `with`.

        Args:
            location: As for `create`.
            encoder_space: Of the encoder that will work on it; another one is refused.
            who: The name in the audit log; default: the user and host.

        Returns:
            The open gallery.

        Raises:
            GalleryError: There is none.
            SpaceMismatch: It holds no vectors of `encoder_space`.
        """
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
        """The same open gallery, with another name in the audit log.

        Args:
            who: The name.

        Returns:
            A gallery that shares everything with this one.
        """
        return Gallery(self._session, who=who)

    def tenant(self, name: str) -> Tenant:
        """The part of one tenant: its own ids, and only its items in every answer.

        Args:
            name: Of the tenant.

        Returns:
            What a tenant may do: add, get, search, delete.
        """
        from midspan.gallery.tenants import Tenant

        return Tenant(self, name)

    def close(self) -> None:
        """Let go of files and connections; further calls are errors."""
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
        """Which spaces answer, which is being filled, and the record of the upgrade."""
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
        """Whether an application writes items without a vector of this space.

        Args:
            space: A fingerprint.

        Returns:
            True if there is always work for an encoder of this space.
        """
        engine = self._session.engine
        if not isinstance(engine, Adopts) or engine.owner is None:
            return False
        return engine.written_space != self._session.catalogue.snapshot().numbers.get(space)

    def check_encoder(self, space: Space) -> None:
        """Refuse an encoder whose vectors this gallery does not hold.

        Args:
            space: Of the encoder.

        Raises:
            SpaceMismatch: It is none of the gallery's.
        """
        rules.check_encoder(self.state, space, shown=self.location)

    def change(self, state: State, *, event: AuditEvent) -> State:
        """Replace the state it was made from, with a line in the log.

        A new target makes a new work list; a space is forgotten once it has no vectors left.

        Args:
            state: Made from `gallery.state` with `dataclasses.replace`.
            event: The line.

        Returns:
            The new state.

        Raises:
            StateChanged: Another process changed it meanwhile.
        """
        return self._session.states.change(state, event=event)

    def record(self, event: AuditEvent) -> None:
        """Write a line in the audit log.

        Args:
            event: Who did what.
        """
        self._session.catalogue.audit.record(event)

    def audit_log(self, *, limit: int = 100, what: str | None = None) -> list[AuditEvent]:
        """Who did what and when, newest first.

        Args:
            limit: How many lines at most.
            what: Only lines of this kind: "create", "upgrade start" …

        Returns:
            The lines.
        """
        return self._session.catalogue.audit.read(limit=limit, what=what)

    def audit_contains(self, event: AuditEvent) -> bool:
        """Whether the log has a line of this kind and details, however long ago.

        Args:
            event: The line.

        Returns:
            True if it is there.
        """
        return self._session.catalogue.audit.contains(event)

    def count(self) -> Counts:
        """How many items there are, by the space of their live vector, and what is left to do.

        Returns:
            Counts; items = sum of `live` + without.
        """
        return self._session.count()

    def count_matching(self, filter: Where) -> int:
        """Count the items that pass a filter.

        Args:
            filter: Which items may answer: a Filter, or its JSON form, such as {"brand": "acme"}.

        Returns:
            How many there are.
        """
        return self._session.count_matching(_filter(filter))

    def sequence(self, *, settled: bool = False) -> int:
        """A number that grows with each write of any process.

        Args:
            settled: Wait until all writes up to it are visible.

        Returns:
            The number.
        """
        return self._session.catalogue.sequence(settled=settled)

    def settings(self) -> dict[str, str]:
        """What it was made with, and what its owner chose since.

        Returns:
            Values by name.
        """
        return self._session.catalogue.settings()

    def set_setting(self, name: str, value: str, *, event: AuditEvent) -> None:
        """A choice of the owner, for every process.

        Args:
            name: Of the setting.
            value: Its text.
            event: The line in the audit log.
        """
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
        """Store new items, in transactions of 2,000.

        Args:
            vectors: In a space that the gallery knows. Without `uris` their column "uri" is taken,
                without `payloads` their other columns, such as labels.
            also: Vectors of some of the same items in further spaces.
            uris: Where the image of each item is; an upgrade by an encoder reads it.
            payloads: JSON objects, one an item: what filters look at and hits show.
            show: A progress bar.

        Returns:
            The number of items.

        Raises:
            SpaceMismatch: The gallery does not hold vectors of this space.
            ItemError: An id is there already, or uris or payloads do not fit.
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
        """New images for items that are there: all that was known of the former ones goes.

        Args:
            vectors: In a space that the gallery knows. Without `uris` their column "uri" is taken,
                without `payloads` their other columns, such as labels.
            also: Vectors of some of the same items in further spaces.
            uris: Where the image of each item is; an upgrade by an encoder reads it.
            payloads: JSON objects, one an item: what filters look at and hits show.
            show: A progress bar.

        Returns:
            The number of items.

        Raises:
            SpaceMismatch: The gallery does not hold vectors of this space.
            ItemError: An id is not there, or uris or payloads do not fit.
        """
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
        """Add or replace: may be repeated after a crash.

        Args:
            vectors: In a space that the gallery knows. Without `uris` their column "uri" is taken,
                without `payloads` their other columns, such as labels.
            also: Vectors of some of the same items in further spaces.
            uris: Where the image of each item is; an upgrade by an encoder reads it.
            payloads: JSON objects, one an item: what filters look at and hits show.
            show: A progress bar.

        Returns:
            The number of items.

        Raises:
            SpaceMismatch: The gallery does not hold vectors of this space.
            ItemError: uris or payloads do not fit.
        """
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
        """Items with all of their vectors, whole or not at all: one transaction.

        Args:
            drafts: Id, uri and payload of each.
            vectors: Theirs, in one or several spaces.
            mode: "add", "replace" or "put".

        Raises:
            SpaceMismatch: The gallery does not hold vectors of such a space.
            ItemError: An id is there (add) or is not (replace).
        """
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
        """Give vectors to items that have none in the space and are still at the revision.

        The others are left alone, so that it may be repeated.

        Args:
            vectors: In the target's space.
            revisions: Of the items when their images were read.

        Returns:
            How many were written.
        """
        count = self._session.items.add_missing_vectors(vectors, revisions=revisions)
        self._session.maintenance.wrote()
        return count

    def set_payload(self, payloads: Mapping[str, Payload]) -> None:
        """Other payloads for these ids; images and vectors stay.

        Args:
            payloads: The whole new payload of each, by id.

        Raises:
            UnknownId: One of them is not there.
        """
        self._session.items.set_payload(payloads)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items with all of their vectors.

        Args:
            ids: Theirs; those that are not there are passed over.

        Returns:
            How many there were.
        """
        return self._session.items.delete(ids)

    def expire_by(self, field: str | tuple[str, ...] | None) -> None:
        """Let items end: they go when the time in a payload field has passed.

        Any process with the gallery open removes them, within a minute or so.

        Args:
            field: Of seconds since 1970, such as "until"; None: items have no end any more.

        Raises:
            GalleryError: The items are those of an application's table.
        """
        if self.owner is not None:
            raise GalleryError(
                f"{self.location}: its items are those of {self.owner}; delete them there"
            )
        path = None if field is None else check_path(field)
        event = AuditEvent(who=self.who, what="expire by", details={"field": field})
        self.set_setting("expires", json.dumps(path), event=event)

    def expires_by(self) -> str | None:
        """The payload field that says when an item expires.

        Returns:
            The field, or None if items have no end.
        """
        path = self._session.maintenance.expires_by()
        return None if path is None else ".".join(path)

    def expire(self) -> int:
        """Remove what has expired now.

        Returns:
            How many items went.
        """
        return self._session.maintenance.expire()

    def drop_vectors(self, space: str, *, event: AuditEvent | None = None) -> int:
        """Forget a space that is neither live nor the target.

        Args:
            space: Its fingerprint.
            event: The line in the audit log.

        Returns:
            How many vectors it had.

        Raises:
            GalleryError: It is live, or the target.
        """
        logged = event or AuditEvent(who=self.who, what="drop vectors", details={"space": space})
        return self._session.states.drop_vectors(space, event=logged)

    # ---- reading

    def __len__(self) -> int:
        return self.count().items

    def get(self, id: str) -> Item:
        """One item.

        Args:
            id: Its id.

        Returns:
            Uri, payload, revision, and the spaces that it has vectors in.

        Raises:
            UnknownId: It is not there.
        """
        items = self.get_many([id])
        if not items:
            raise UnknownId(f"{id!r:.80} is not in {self.location}")
        return items[0]

    def get_many(self, ids: Sequence[str]) -> list[Item]:
        """Those items that are there.

        Args:
            ids: Theirs.

        Returns:
            Items in the order asked for.
        """
        return self._session.get_many(ids)

    def vectors(self, ids: Sequence[str], *, space: str) -> Embeddings:
        """Stored vectors.

        Args:
            ids: Of items; those without a vector in the space are left out.
            space: Its fingerprint.

        Returns:
            Embeddings in the order asked for.
        """
        return self._session.vectors(ids, space=space)

    def scan(
        self,
        *,
        filter: Where = None,
        missing: str | None = None,
        after: str = "",
        limit: int,
    ) -> list[Item]:
        """The next items by id.

        Args:
            filter: Which items may answer: a Filter, or its JSON form, such as {"brand": "acme"}.
            missing: Fingerprint of a space; only items without a vector in it.
            after: The id to continue after.
            limit: How many at most.

        Returns:
            Items; fewer than `limit` at the end.
        """
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

        Args:
            query: Embeddings; (Q, D) numbers with their `space`; or the same queries in the old and
                in the new space (equal ids), as an upgrade in mode both requires.
            k: Results for each query.
            space: Of plain numbers.
            filter: Which items may answer: a Filter, or its JSON form, such as {"brand": "acme"}.
            exact: Compare with every vector instead of an index.
            threshold: The lowest `score` (cosine …) that counts.
            arm: Which way answers queries that came in both spaces; by default the upgrade's share
                of traffic decides.
            client: Decides the way for all queries of one client; else each query by itself.

        Returns:
            For each query its hits: id, score, space, uri, payload.

        Raises:
            SpaceMismatch: Nothing connects the query's space with the gallery's.

        Example:
            >>> import numpy as np
            >>> import midspan as ms
            >>> shop = ms.Embeddings(np.array(["a", "b"]), np.eye(2), ms.Space("tiny", 2))
            >>> with ms.Gallery.create("memory:", shop.space) as gallery:
            ...     count = gallery.add(shop, payloads=[{"price": 5}, {"price": 90}])
            ...     hits = gallery.search(shop[:1], k=2, filter={"price": {"$gt": 50}})
            >>> [hit.id for hit in hits[0]]
            ['b']
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
        """`search` with plain numbers.

        Args:
            queries: (space, (Q, D) vectors): the same queries in each of these spaces.
            k: Results for each query.
            filter: Which items may answer: a Filter, or its JSON form, such as {"brand": "acme"}.
            exact: Compare with every vector instead of an index.
            threshold: The lowest `score` (cosine …) that counts.
            arm: As in `search`.
            client: As in `search`.

        Returns:
            For each query its hits.
        """
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

        Its live vector is the query, so it is answered like a query of that vector's space; in mode
        both its vectors in both spaces, or the old one as before the upgrade.

        Args:
            id: Of the stored item.
            k: Results.
            filter: Which items may answer: a Filter, or its JSON form, such as {"brand": "acme"}.
            exact: Compare with every vector instead of an index.

        Returns:
            Hits, the nearest first.

        Raises:
            UnknownId: It is not there.
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
        """Build the indexes that are due now, instead of in the background.

        Returns:
            Fingerprints of their spaces.
        """
        return self._session.build_due_indexes()

    def indexes_due(self) -> tuple[str, ...]:
        """The spaces that have grown past where an index pays and have none.

        Returns:
            Their fingerprints.
        """
        return self._session.indexes_due()

    def index_payload(self, path: str | tuple[str, ...]) -> None:
        """Index a payload field, so that a filter which few items pass is fast.

        Args:
            path: Of the field: "brand", "maker.country", or its parts.
        """
        self._session.index_payload(check_path(path), who=self.who)

    def index_status(self) -> dict[str, IndexStatus]:
        """How the index of each space stands.

        Returns:
            By fingerprint: rows, kind, state, unindexed rows, the last failure.
        """
        return self._session.index_status()

    def live_p99(self) -> float | None:
        """How long searches of any process take while there is work.

        Returns:
            Seconds, or None if unknown.
        """
        beacon = self._session.beacon
        return None if beacon is None else beacon.p99()

    @property
    def shares_latency(self) -> bool:
        """Whether searchers say how long their searches take: where the catalogue is a file."""
        return self._session.beacon is not None

    def check_storage(self) -> list[str]:
        """Look at the stored data itself.

        Returns:
            What is wrong, a line each; empty if nothing is.
        """
        return self._session.catalogue.database.check()

    def garbage(self) -> int:
        """Rows in the engine that belong to no item: left by writes that were interrupted.

        Returns:
            How many; `optimise` removes them.
        """
        return self._session.maintenance.garbage()

    def info(self) -> Info:
        """What the gallery holds, in numbers.

        Returns:
            Items by space, what is left to do, indexes, the upgrade.
        """
        return describe(self)

    def verify(self, *, show: bool = False) -> Verification:
        """Look at every item and vector; changes nothing.

        Args:
            show: A progress bar.

        Returns:
            What was found; `ok` if there is no problem.
        """
        return verify(self, show=show)


def _filter(filter: Where) -> Filter | None:
    return parse_filter(filter) if isinstance(filter, Mapping) else filter
