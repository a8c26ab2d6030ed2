"""Milvus as the engine of a store that takes turns. Every read waits until it sees all that
happened up to `time`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from midspan.gallery.filters import Filter
from midspan.gallery.stores.milvus import connection, schema, upkeep
from midspan.gallery.stores.milvus.connection import INSERT_ROWS, Connection
from midspan.gallery.stores.milvus.expressions import expression
from midspan.gallery.stores.milvus.place import KINDS, split_location
from midspan.gallery.stores.milvus.where import where
from midspan.gallery.stores.settings import with_settings
from midspan.gallery.stores.turns.access import Access
from midspan.gallery.stores.turns.conditions import Among, Condition, Span
from midspan.gallery.stores.turns.engine import MOST, Beat, Row, Sought
from midspan.gallery.stores.turns.head import Head
from midspan.spaces import FloatArray, Metric, Space

PAYLOAD = 50_000  # bytes that Milvus can filter by
NUMBERS = 50_000_000  # that one request compares: some seconds of a busy server, see SECONDS


class Server(Connection):
    word: ClassVar[str] = "Milvus"

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._location = location
        self.name, self.lease = self.place.name, self.place.lease
        self.settings = self.place.settings

    def adopt(self, settings: Mapping[str, str]) -> None:
        self.place = split_location(with_settings(self._location, settings))

    # ---- the head: the name of a collection without rows, behind an alias

    def head(self) -> Head | None:
        name = self.described(self.name)
        return None if name is None else Head.from_name(name)

    def swap(self, before: Head, after: Head) -> bool:
        return self.rename(before.name, after.name)

    def begin(self, head: Head) -> bool:
        schema.make_head(self, head.name)
        if self.point(self.name, head.name):
            return True
        self.drop(head.name)
        return False

    def clock(self) -> float:
        return (self.now() >> 18) / 1000 or time.time()

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
        """Milvus' order, if there is a limit, is that of the primary keys."""
        with self.errors():
            rows = self.client.query(
                collection,
                filter=expression(where),
                output_fields=list(fields),
                timeout=connection.SECONDS,
                consistency_level="Customized",
                guarantee_timestamp=time,
                **({"limit": limit} if limit else {}),
            )
        return list(rows)

    def count(self, collection: str, where: Sequence[Condition], *, time: int) -> int:
        return int(self.query(collection, where, ["count(*)"], time=time)[0]["count(*)"])

    def search(self, collection: str, sought: Sought) -> list[list[Row]]:
        at_once = self._at_once(collection, sought)
        return [
            hits
            for start in range(0, len(sought.vectors), at_once)
            for hits in self._search(
                collection, sought, vectors=sought.vectors[start : start + at_once]
            )
        ]

    def _at_once(self, collection: str, sought: Sought) -> int:
        """Queries of one request: without an index each is compared with all the rows."""
        if sought.index is not None or len(sought.vectors) < 2:
            return max(1, len(sought.vectors))
        rows = self.count(collection, [Span("pk", low=0)], time=sought.time)
        return max(1, NUMBERS // (max(1, rows) * len(sought.vectors[0])))

    def _search(
        self, collection: str, sought: Sought, *, vectors: Sequence[FloatArray]
    ) -> list[list[Row]]:
        level = self.place.consistency
        with self.errors():
            found = self.client.search(
                collection,
                data=list(vectors),
                filter=expression(sought.where),
                limit=sought.limit,
                output_fields=["row", "vector"],
                search_params=self._breadth(sought.index, sought.limit),
                timeout=connection.SECONDS,
                consistency_level=level,
                **({"guarantee_timestamp": sought.time} if level == "Customized" else {}),
            )
        return [
            [
                {
                    "pk": hit["id"] if "id" in hit else hit["pk"],  # by its version
                    "distance": hit["distance"],
                    "row": hit["entity"]["row"],
                    "vector": hit["entity"]["vector"],
                }
                for hit in hits
            ]
            for hits in found
        ]

    def _breadth(self, index: Mapping[str, Any] | None, limit: int) -> dict[str, int]:
        """How far the index looks: what the location says, but never less than is asked for."""
        if index is None:
            return {}
        knob = KINDS[index["index_type"]].search
        breadth = self.place.breadth or knob.default
        if knob.name == "nprobe":  # lists, not candidates
            return {knob.name: min(breadth, int(index["params"]["nlist"]))}
        return {knob.name: min(max(breadth, 2 * limit), 2 * MOST)}

    def oversampling(self, index: Mapping[str, Any] | None) -> float:
        if index is None:
            return 1.0
        return self.place.oversampling or KINDS[index["index_type"]].oversampling

    def insert(self, collection: str, rows: Iterable[Row], *, beat: Beat) -> None:
        self.put(collection, ({**row, "vector": [0.0, 0.0]} for row in rows), beat=beat)

    def insert_vectors(
        self, collection: str, rows: Iterable[Row], *, metric: Metric, beat: Beat
    ) -> None:
        self.put(collection, rows, beat=beat)

    def delete(self, collection: str, keys: Sequence[str | int]) -> None:
        for start in range(0, len(keys), INSERT_ROWS):
            part = expression([Among("pk", keys[start : start + INSERT_ROWS])])
            with self.errors():
                self.client.delete(collection, filter=part, timeout=connection.SECONDS)

    def condition(self, filter: Filter) -> tuple[bool, bool]:
        text, sure = where(filter)
        return bool(text), sure

    def plain(self, payload: Mapping[str, Any], size: int) -> bool:
        return size <= PAYLOAD

    # ---- collections

    def make_records(self, name: str) -> None:
        schema.make_records(self, name)

    def make_vectors(self, name: str, space: Space) -> None:
        schema.make_vectors(self, name, space, schema.FLAT)

    def wait_until_loaded(self, name: str, *, beat: Beat) -> None:
        schema.wait_until_loaded(self, name, beat=beat)

    def upkeep(self, access: Access) -> None:
        upkeep.index(self, access)
