"""An engine whose first space is a collection of an application: read where it is, never written.

New spaces are the inner engine's, in collections of ours on the same server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sqlalchemy import func, select

from midspan.errors import GalleryError
from midspan.gallery.adoption.binding import SETTING
from midspan.gallery.adoption.collection import (
    CollectionBinding,
    ForeignCollection,
    link_table,
    open_collection,
)
from midspan.gallery.adoption.survey import condition_of
from midspan.gallery.catalogue.items import one_of, presence
from midspan.gallery.engines import engine_class
from midspan.gallery.engines.base import Candidates, Engine, IndexStatus, SearchRequest
from midspan.gallery.engines.remote import Probe, SpaceCandidates, scored, search_server
from midspan.spaces import FloatArray, IntArray, Metric, Space

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from midspan.gallery.catalogue.catalogue import Catalogue
    from midspan.gallery.location import Location


class CollectionEngine:
    colocated = False

    def __init__(
        self, inner: Engine, location: Location, catalogue: Catalogue, binding: CollectionBinding
    ) -> None:
        self.inner, self.binding = inner, binding
        self._catalogue, self._link = catalogue, link_table(catalogue.tables)
        self.recorded: Mapping[str, str] = inner.recorded
        self.source: ForeignCollection = open_collection(location, binding)

    @classmethod
    def open(cls, location: Location, catalogue: Catalogue) -> Self:
        """What `Session.open` makes, around the engine of the location."""
        inner: Engine = engine_class(location.scheme).open(location, catalogue)
        try:
            binding = CollectionBinding.from_json(catalogue.settings()[SETTING])
            return cls(inner, location, catalogue, binding)
        except BaseException:
            inner.close()
            raise

    create = open

    def close(self) -> None:
        self.source.close()
        self.inner.close()

    # ---- the application's

    @property
    def owner(self) -> str:
        return self.binding.shown

    @property
    def written_space(self) -> int:
        return self.binding.number

    def catch_up(self) -> int:
        from midspan.gallery.adoption.collection import catch_up

        return catch_up(self._catalogue, self).total

    # ---- spaces

    def create_space(
        self, number: int, space: Space, *, connection: Connection | None = None
    ) -> None:
        self.inner.create_space(number, space, connection=connection)

    def drop_space(self, number: int, *, connection: Connection | None = None) -> None:
        if number != self.binding.number:  # the application's collection stays
            self.inner.drop_space(number, connection=connection)

    # ---- vectors

    def put(
        self,
        number: int,
        rows: IntArray,
        vectors: FloatArray,
        *,
        payloads: Sequence[str] | None = None,
        connection: Connection | None = None,
    ) -> None:
        if number == self.binding.number:
            raise GalleryError(
                f"{self._catalogue.shown}: the vectors of space {number} are those of "
                f"{self.owner}, which its application writes; write them there"
            )
        self.inner.put(number, rows, vectors, payloads=payloads, connection=connection)

    def delete(self, rows: IntArray, *, connection: Connection | None = None) -> None:
        self.inner.delete(rows, connection=connection)

    def supersede(self, number: int, rows: IntArray, *, by: int) -> None:
        if number != self.binding.number:
            self.inner.supersede(number, rows, by=by)

    def set_payload(self, payloads: Mapping[int, str]) -> None:
        self.inner.set_payload(payloads)

    def fetch(self, number: int, rows: IntArray) -> tuple[IntArray, FloatArray]:
        if number != self.binding.number:
            return self.inner.fetch(number, rows)
        keys = self._keys(rows.tolist())
        there, vectors = self.source.fetch(list(keys.values()))
        place = {key: index for index, key in enumerate(there)}
        _, usable, _ = condition_of(vectors, self.source.metric or "cosine")
        known = [
            row
            for row in rows.tolist()
            if row in keys and keys[row] in place and usable[place[keys[row]]]
        ]
        chosen = vectors[[place[keys[row]] for row in known]]
        return np.array(known, np.int64), chosen.reshape(-1, self.source.dim)

    def rows(self, number: int, *, after: int, limit: int) -> IntArray:
        if number != self.binding.number:
            return self.inner.rows(number, after=after, limit=limit)
        row = self._link.c.row
        records = self._all(select(row).where(row > after).order_by(row).limit(limit))
        return np.array([one for (one,) in records], np.int64)

    def count(self, number: int) -> int:
        if number != self.binding.number:
            return self.inner.count(number)
        return int(self._all(select(func.count()).select_from(self._link))[0][0])

    # ---- search

    def search(self, request: SearchRequest) -> list[Candidates]:
        own = tuple(number for number in request.among if number != self.binding.number)
        if own == request.among:
            return self.inner.search(request)
        bound = dataclasses.replace(request, among=(self.binding.number,))
        metric = self._catalogue.snapshot().spaces[self.binding.number].metric
        candidates = search_server(
            bound,
            self._catalogue,
            metric=metric,
            fetch=self.fetch,
            probe=self._prober(bound, metric),
        )
        if not own:
            return candidates
        others = self.inner.search(dataclasses.replace(request, among=own))
        if request.live.index(self.binding.number) < min(map(request.live.index, own)):
            others, candidates = candidates, others
        return [_merged(*pair) for pair in zip(others, candidates, strict=True)]

    def _prober(self, request: SearchRequest, metric: Metric) -> Probe:
        better = request.live[: request.live.index(self.binding.number)]

        def probe(number: int, queries: FloatArray, limit: int) -> list[SpaceCandidates]:
            return [self._probe(query, limit, request, better, metric) for query in queries]

        return probe

    def _probe(
        self,
        query: FloatArray,
        limit: int,
        request: SearchRequest,
        better: tuple[int, ...],
        metric: Metric,
    ) -> SpaceCandidates:
        """What the application's collection finds, of items that no better space has."""
        nearest = self.source.search(query, limit=limit, filter=request.filter, exact=request.exact)
        rows = self._rows(nearest.keys)
        superseded: set[int] = set()
        if better and rows:
            with self._catalogue.reading() as connection:
                stored = presence(connection, self._catalogue.tables, better, list(rows.values()))
            superseded = {row for _, row in stored}
        _, usable, _ = condition_of(nearest.vectors, metric)
        places = [
            place
            for place, key in enumerate(nearest.keys)
            if usable[place] and key in rows and rows[key] not in superseded
        ]
        kept = np.array([rows[nearest.keys[place]] for place in places], np.int64)
        vectors = nearest.vectors[places].reshape(-1, self.source.dim)
        return scored(query, kept, vectors, metric=metric, cut=nearest.cut)

    # ---- index: the application's is its own

    def needs_index(self, number: int) -> bool:
        return number != self.binding.number and self.inner.needs_index(number)

    def build_index(self, number: int) -> None:
        if number != self.binding.number:
            self.inner.build_index(number)

    def index_status(self, number: int) -> IndexStatus:
        if number != self.binding.number:
            return self.inner.index_status(number)
        kind, rows = self.source.index(), self.count(number)
        return IndexStatus(rows, kind or "flat", "ready" if kind else "none")

    def vacuum(self) -> None:
        self.inner.vacuum()

    # ---- keys and rows

    def _keys(self, rows: Sequence[int]) -> dict[int, str]:
        link = self._link.c
        condition = one_of(self._catalogue.tables, link.row, rows)
        return dict(self._all(select(link.row, link.key).where(condition)))

    def _rows(self, keys: Sequence[str]) -> dict[str, int]:
        link = self._link.c
        condition = one_of(self._catalogue.tables, link.key, keys)
        return dict(self._all(select(link.key, link.row).where(condition)))

    def _all(self, statement: Any) -> Sequence[Any]:
        with self._catalogue.reading() as connection:
            return connection.execute(statement).fetchall()


def _merged(one: Candidates, other: Candidates) -> Candidates:
    """Of two searches of different spaces; `one` is the better space of a row that is in both."""
    both = np.isin(other.rows, one.rows)
    rows = np.r_[one.rows, other.rows[~both]]
    spaces = np.r_[one.spaces, other.spaces[~both]]
    scores = np.r_[one.scores, other.scores[~both]]
    cuts = [part.scores[-1] for part in (one, other) if not part.complete and len(part.scores)]
    order = np.lexsort((rows, -scores))
    if cuts:  # below the last of a search that left out some, others of it may follow
        order = order[scores[order] >= max(cuts)]
    return Candidates(
        rows[order], spaces[order], scores[order], complete=one.complete and other.complete
    )
