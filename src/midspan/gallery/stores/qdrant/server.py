"""Qdrant as the engine of a store that takes turns.

The head is one point: Qdrant changes it only if it still has the name that one thinks (a
conditional update), and reading it again tells whether it did.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from midspan.gallery.filters import Filter
from midspan.gallery.scores import prepare
from midspan.gallery.stores.qdrant import schema
from midspan.gallery.stores.qdrant.connection import Connection
from midspan.gallery.stores.qdrant.keys import numbers, point_id
from midspan.gallery.stores.qdrant.place import split_location
from midspan.gallery.stores.qdrant.points import (
    BYTES,
    ROWS,
    as_row,
    record_points,
    vector_points,
    wanted,
)
from midspan.gallery.stores.qdrant.reading import by_key, keys_after, scroll
from midspan.gallery.stores.qdrant.where import (
    as_filter,
    equal,
    means_the_same,
    translated,
)
from midspan.gallery.stores.settings import with_settings
from midspan.gallery.stores.turns.access import Access
from midspan.gallery.stores.turns.conditions import After, Among, Condition, Is
from midspan.gallery.stores.turns.engine import Beat, Gone, Row, Sought
from midspan.gallery.stores.turns.head import Head
from midspan.gallery.stores.turns.portions import portions
from midspan.spaces import Metric, Space

HEAD = 0  # the point that holds it
PAYLOAD = 50_000  # bytes that are filtered by; the same in all stores that take turns


class Server(Connection):
    word: ClassVar[str] = "Qdrant"

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._location = location
        self.name, self.lease = self.place.name, self.place.lease
        self.settings = self.place.settings
        self._levels: dict[str, int] = {}  # indexed numbers of the keys, by collection

    def adopt(self, settings: Mapping[str, str]) -> None:
        self.place = split_location(with_settings(self._location, settings))

    # ---- the head

    def head(self) -> Head | None:
        try:
            with self.errors():
                found = self.client.retrieve(self.name, [HEAD], **self.reading())
        except Gone:
            return None
        return Head.from_name(found[0].payload["name"]) if found else None

    def swap(self, before: Head, after: Head) -> bool:
        self._put_head(after, before.name)
        return self.head() == after

    def begin(self, head: Head) -> bool:
        schema.make_head(self, self.name)
        self._put_head(head, "")  # no head has that name: what is there stays
        return self.head() == head

    def _put_head(self, head: Head, before: str) -> None:
        from qdrant_client import models

        point = models.PointStruct(id=HEAD, vector={}, payload={"name": head.name})
        with self.errors():
            self.client.upsert(
                self.name,
                [point],
                wait=True,
                ordering=models.WriteOrdering.STRONG,
                update_filter=models.Filter(must=[equal("name", before)]),
            )

    def now(self) -> int:
        return 0  # a write waits until it is applied: every read sees it

    def clock(self) -> float:
        return time.time()

    # ---- rows

    def query(
        self,
        collection: str,
        where: Sequence[Condition],
        fields: Sequence[str],
        *,
        time: int,
        limit: int = 0,
    ) -> list[Row]:
        first = where[0] if where else None
        if isinstance(first, Is | Among) and first.field == "pk":
            assert len(where) == 1, "a key is all that can be asked for"
            keys = [first.value] if isinstance(first, Is) else first.values
            return by_key(self, collection, keys, fields)
        if not isinstance(first, After):
            return scroll(self, collection, where, fields, start=None, limit=limit)
        if isinstance(first.key, int):  # points stand by their number
            return scroll(self, collection, where, fields, start=first.key + 1, limit=limit)
        keys = keys_after(self, collection, first.key, where, limit)
        rows = [{"pk": key} for key in keys]
        if set(fields) > {"pk"}:
            rows = by_key(self, collection, keys, fields)
        return sorted(rows, key=lambda row: str(row["pk"]))

    def count(self, collection: str, where: Sequence[Condition], *, time: int) -> int:
        with self.errors():
            return int(self.client.count(collection, as_filter(where), exact=True).count)

    def search(self, collection: str, sought: Sought) -> list[list[Row]]:
        from qdrant_client import models

        condition, metric = as_filter(sought.where), sought.metric
        asked = wanted(("pk", "row", "vector"))
        requests = [
            models.QueryRequest(
                query=prepare(vector[None], metric=metric)[0].tolist(),
                filter=condition,
                limit=sought.limit,
                params=self._params(exact=sought.exact, limit=sought.limit),
                with_payload=asked["with_payload"],
                with_vector=asked["with_vectors"],
            )
            for vector in sought.vectors
        ]
        with self.errors():
            answers = self.client.query_batch_points(collection, requests, **self.reading())
        return [
            [
                {
                    **as_row(point, ("pk", "row", "vector")),
                    "distance": point.score**2 if metric == "l2" else point.score,
                }
                for point in answer.points
            ]
            for answer in answers
        ]

    def _params(self, *, exact: bool, limit: int) -> Any:
        from qdrant_client import models

        if self.local:  # which compares all
            return None
        look = self.place.look
        codes = models.QuantizationSearchParams(
            ignore=exact, rescore=look.rescore, oversampling=look.oversampling
        )
        return models.SearchParams(
            hnsw_ef=max(look.ef, 2 * limit),
            exact=exact,
            quantization=codes if self.place.layout.int8 else None,
        )

    def oversampling(self, index: Mapping[str, Any] | None) -> float:
        return 1.0  # it does that by itself

    def insert(self, collection: str, rows: Iterable[Row], *, beat: Beat) -> None:
        held = list(rows)
        self._index_keys(collection, max(len(numbers(row["pk"])) for row in held))
        self._upsert(collection, record_points(held), beat)

    def insert_vectors(
        self, collection: str, rows: Iterable[Row], *, metric: Metric, beat: Beat
    ) -> None:
        self._upsert(collection, vector_points(rows, metric), beat)

    def _upsert(self, collection: str, points: Any, beat: Beat) -> None:
        for portion in portions(points, rows=ROWS, size=BYTES):
            with self.errors():
                self.client.upsert(collection, portion, wait=True)
            beat()

    def _index_keys(self, collection: str, levels: int) -> None:
        """Longer ids than before have more numbers to sort by."""
        if self.local or levels <= self._levels.get(collection, schema.LEVELS):
            return
        known = schema.indexed_levels(self, collection)
        schema.index_levels(self, collection, range(known, levels))
        self._levels[collection] = max(known, levels)

    def delete(self, collection: str, keys: Sequence[str | int]) -> None:
        from qdrant_client import models

        for start in range(0, len(keys), ROWS):
            ids: list[Any] = [point_id(key) for key in keys[start : start + ROWS]]
            with self.errors():
                self.client.delete(collection, models.PointIdsList(points=ids), wait=True)

    def condition(self, filter: Filter) -> tuple[bool, bool]:
        found = translated(filter)
        return found.word is not None, found.sure

    def plain(self, payload: Mapping[str, Any], size: int) -> bool:
        return size <= PAYLOAD and means_the_same(payload)

    # ---- collections

    def make_records(self, name: str) -> None:
        schema.make_records(self, name)

    def make_vectors(self, name: str, space: Space) -> None:
        schema.make_vectors(self, name, space)

    def wait_until_loaded(self, name: str, *, beat: Beat) -> None:
        """A collection answers as soon as it is made."""

    def collections(self) -> list[str]:
        with self.errors():
            return [found.name for found in self.client.get_collections().collections]

    def age(self, collection: str) -> float:
        return 0.0

    def drop(self, collection: str) -> None:
        with self.errors():
            self.client.delete_collection(collection)

    def upkeep(self, access: Access) -> None:
        """Qdrant builds its indexes by itself; this waits for them."""
        if self.local:
            return
        for collection in access.view().known.collections.values():
            schema.wait_for_index(self, collection)
