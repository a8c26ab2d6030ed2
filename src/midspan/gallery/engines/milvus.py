"""Milvus: a collection per space, with the row as its primary key.

An alias names the collection of a space that answers. A small space is compared as a whole (FLAT).
When an index pays, its rows are copied to a second collection that has one, while the first still
answers; then the alias moves on. Every write goes to the collections that there are, and looks
again afterwards whether there is another one by now: so none is lost, also while others copy.

Marking superseded rows would mean writing them again, so this engine asks for more than k instead,
and the gallery drops them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from midspan.errors import GalleryError, StoreError
from midspan.gallery.catalogue.where import indexed_paths
from midspan.gallery.engines.base import Candidates, IndexState, IndexStatus, SearchRequest
from midspan.gallery.engines.milvus_connection import (
    MOST,
    SECONDS,
    MilvusConnection,
    Row,
    as_records,
    field_of,
    found_of,
    size_of,
    where_of,
)
from midspan.gallery.engines.milvus_location import MilvusLocation, milvus_location
from midspan.gallery.engines.remote import (
    MissingCollection,
    RemoteEngine,
    SpaceCandidates,
    VectorShape,
    best_of,
    search_server,
)
from midspan.gallery.filters import Path
from midspan.gallery.location import Location
from midspan.spaces import FloatArray, IntArray, Metric, Space

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from midspan.gallery.catalogue.catalogue import Catalogue

FLAT: Mapping[str, Any] = {"index_type": "FLAT", "params": {}}
METRICS: dict[Metric, str] = {"cosine": "COSINE", "l2": "L2", "dot": "IP"}
CASTS = ((bool, "bool"), (int | float, "double"), (object, "varchar"))
NUMBERS = 50_000_000  # that one request compares: some seconds of a busy server, see SECONDS
ANSWER_BYTES = 32_000_000  # of vectors in one answer
INDEX_SECONDS = 3600.0
SMALL = 1024  # rows; Milvus does not index a smaller segment
COMPACTS_WRONGLY = "2.3."  # brings deleted rows back: harmless garbage, but not to be asked for

_one_builder = threading.Lock()  # Milvus Lite is not made for two who create one collection


class MilvusEngine(RemoteEngine):
    def __init__(self, catalogue: Catalogue, location: MilvusLocation, *, shown: str) -> None:
        self._location, self._server = location, MilvusConnection(location, shown=shown)
        super().__init__(catalogue, self._server, name=location.name, recorded=location.recorded)
        self._indexed: set[int] = set()  # spaces whose alias has moved on, for good

    @classmethod
    def connect(
        cls, location: Location, catalogue: Catalogue, *, created_with: Mapping[str, str] | None
    ) -> Self:
        engine = cls(
            catalogue, milvus_location(location, created_with=created_with), shown=location.shown
        )
        for name in [] if created_with is None else engine._collections():
            # Milvus Lite forgets what was loaded. Another process may have dropped it meanwhile.
            with contextlib.suppress(MissingCollection):
                engine._server.load(name)
        return engine

    # ---- spaces

    def create_space(
        self, number: int, space: Space, *, connection: Connection | None = None
    ) -> None:
        alias = self._collection(number)
        if self._server.behind(alias) is not None:
            return
        if not self._collections(number):
            self._make(f"{alias}_flat", VectorShape(space.metric, space.dim), FLAT)
        self._server.point(alias, self._collections(number)[0])

    def _make(self, name: str, shape: VectorShape, index: Mapping[str, Any]) -> None:
        index = {**index, "metric_type": METRICS[shape.metric]}
        self._server.make(name, dim=shape.dim, index=index)
        self._server.load(name)
        if self._collections() == [name]:
            return  # the first one of a new gallery
        for path in indexed_paths(self._catalogue):
            kind = self._kind_of(path)
            with contextlib.suppress(GalleryError):  # the same server has refused it before
                if kind is not None:
                    self._server.index_field(name, path, kind)

    def drop_space(self, number: int, *, connection: Connection | None = None) -> None:
        alias = self._collection(number)
        if self._server.behind(alias) is not None:
            with self._server.errors():
                self._server.client.drop_alias(alias, timeout=SECONDS)
        for name in self._collections(number):
            self._server.drop(name)

    def _read_shape(self, number: int) -> VectorShape:
        alias, client = self._collection(number), self._server.client
        with self._server.errors():
            fields = client.describe_collection(alias, timeout=SECONDS)["fields"]
            kind = client.describe_index(alias, "vector", timeout=SECONDS)["metric_type"]
        dims = {field["name"]: field["params"].get("dim") for field in fields}
        metric = next(name for name, word in METRICS.items() if word == kind)
        return VectorShape(metric, int(dims["vector"]))

    def _is_indexed(self, number: int) -> bool:
        if number not in self._indexed:
            collection = self._server.behind(self._collection(number))
            if collection is None:
                raise MissingCollection(f"{self._server.shown}: there is no space {number}")
            if collection.endswith("_index"):
                self._indexed.add(number)
        return number in self._indexed

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
        texts = payloads or ["{}"] * len(rows)
        if not self._everywhere(
            number,
            lambda name: self._server.upsert(name, as_records(rows.tolist(), vectors, texts)),
        ):
            raise MissingCollection(f"{self._server.shown}: there is no space {number}")

    def _everywhere(self, number: int, write: Callable[[str], None]) -> set[str]:
        """Write to all collections of a space, also to one that appears meanwhile."""
        done: set[str] = set()
        while names := [name for name in self._collections(number) if name not in done]:
            for name in names:
                try:
                    write(name)
                except MissingCollection:  # the index has taken its place
                    continue
                done.add(name)
        return done

    def delete(self, rows: IntArray, *, connection: Connection | None = None) -> None:
        for name in self._collections():
            try:
                self._server.delete(name, rows.tolist())
            except MissingCollection:
                continue

    def supersede(self, number: int, rows: IntArray, *, by: int) -> None:
        """Too dear here: searches ask for more instead."""

    def set_payload(self, payloads: Mapping[int, str]) -> None:
        def write(name: str) -> None:
            fields = ("row", "vector")
            records = list(self._server.named(name, list(payloads), fields))
            rows = [row["row"] for row in records]
            vectors = np.array([row["vector"] for row in records], np.float32)
            texts = [payloads[row] for row in rows]
            self._server.upsert(name, as_records(rows, vectors, texts))

        prefix = f"{self._location.name}__"
        for number in {int(name[len(prefix) :].split("_")[0]) for name in self._collections()}:
            self._everywhere(number, write)

    def _vectors(self, number: int, rows: list[int]) -> dict[int, Any]:
        records = self._server.named(self._collection(number), rows, ("row", "vector"))
        return {row["row"]: row["vector"] for row in records}

    def rows(self, number: int, *, after: int, limit: int) -> IntArray:
        rows: dict[int, None] = {}
        while len(rows) < limit:
            size = min(MOST, limit - len(rows))
            name = self._collection(number)
            page = self._server.query(name, f"row > {after}", ["row"], limit=size)
            if not page:
                break
            rows |= dict.fromkeys(row["row"] for row in page)
            after = max(rows)
        return np.array(list(rows), np.int64)

    def count(self, number: int) -> int:
        return int(self._server.query(self._collection(number), "", ["count(*)"])[0]["count(*)"])

    # ---- search

    def search(self, request: SearchRequest) -> list[Candidates]:
        metric, where = self._shape(request.among[0]).metric, where_of(request.filter)

        def probe(number: int, queries: FloatArray, limit: int) -> list[SpaceCandidates]:
            if limit > MOST or (request.exact and self._is_indexed(number)):
                return best_of(self._scan(number, where), queries, limit=limit, metric=metric)
            return self._probe(number, queries, limit, where)

        return search_server(
            request,
            self._catalogue,
            metric=metric,
            fetch=self.fetch,
            probe=probe,
            factor=self._location.oversampling * len(request.live),
        )

    def _probe(
        self, number: int, queries: FloatArray, limit: int, where: str
    ) -> list[SpaceCandidates]:
        shape = self._shape(number)
        results: list[SpaceCandidates] = []
        at_once = min(self._at_once(number, len(queries)), ANSWER_BYTES // (4 * shape.dim * limit))
        for start in range(0, len(queries), max(1, at_once)):
            part = queries[start : start + max(1, at_once)]
            with self._server.errors():
                answers = self._server.client.search(
                    self._collection(number),
                    data=list(part),
                    filter=where,
                    limit=limit,
                    output_fields=["vector"],
                    search_params=self._location.search_params(limit),
                    timeout=SECONDS,
                    consistency_level=self._location.consistency,
                )
            for query, hits in zip(part, answers, strict=True):
                if (
                    len(hits) < limit
                    and self._is_indexed(number)
                    and self._left(number, where, hits)
                ):
                    # An index may end early behind a filter: then the answer is not all there is.
                    pages = self._scan(number, where)
                    results += best_of(pages, query[None], limit=limit, metric=shape.metric)
                    continue
                results.append(found_of(query, hits, limit=limit, shape=shape))
        return results

    def _at_once(self, number: int, queries: int) -> int:
        """Queries of one request: without an index each is compared with all the rows."""
        if queries < 2 or self._is_indexed(number):
            return queries
        return max(1, NUMBERS // (max(1, self.count(number)) * self._shape(number).dim))

    def _left(self, number: int, where: str, hits: Sequence[Any]) -> bool:
        """Whether there is more than was found."""
        counted = self._server.query(self._collection(number), where, ["count(*)"])
        return int(counted[0]["count(*)"]) > len(hits)

    def _scan(self, number: int, where: str) -> Iterator[tuple[IntArray, FloatArray]]:
        alias, dim, after = self._collection(number), self._shape(number).dim, -1
        size = max(1, min(MOST, ANSWER_BYTES // (4 * dim)))
        while True:
            beyond = f"row > {after} and ({where})" if where else f"row > {after}"
            page = self._server.query(alias, beyond, ["row", "vector"], limit=size)
            if not page:
                return
            rows = np.array([row["row"] for row in page], np.int64)
            after = int(rows.max())
            yield rows, np.array([row["vector"] for row in page], np.float32)

    # ---- index

    def needs_index(self, number: int) -> bool:
        return not self._is_indexed(number) and self.count(number) >= self._location.index_from

    def build_index(self, number: int) -> None:
        if not self._is_indexed(number) and not self.needs_index(number):
            return
        try:
            with _one_builder if self._location.local else nullcontext():
                self._move(number)
        except StoreError:  # if the first collection is gone, somebody else has done it
            if f"{self._collection(number)}_flat" in self._collections(number):
                raise

    def _move(self, number: int) -> None:
        alias = self._collection(number)
        flat, indexed = f"{alias}_flat", f"{alias}_index"
        if not self._is_indexed(number):
            self._make_once(indexed, number, self._shape(number))
            self._copy(flat, indexed)
        self._wait_for_index(indexed)
        if not self._is_indexed(number):
            self._copy(flat, indexed)  # what was written by one who did not know of it yet
            self._server.point(alias, indexed)
        if flat in self._collections(number):
            self._copy(flat, indexed)
            self._server.drop(flat)

    def _make_once(self, name: str, number: int, shape: VectorShape) -> None:
        """Somebody else may be building the same index: then both fill one collection."""
        if name not in self._collections(number):
            try:
                self._make(name, shape, self._location.index(shape.dim))
                return
            except StoreError:
                if name not in self._collections(number):
                    raise
        self._server.load(name)

    def _copy(self, source: str, target: str) -> None:
        """Rows that the target lacks. Concurrent writers change the source first, so what is read
        there once more after copying is what counts."""
        after = -1
        while page := self._server.query(source, f"row > {after}", ["row"], limit=2000):
            rows = [row["row"] for row in page]
            after = max(rows)
            there = {row["row"] for row in self._server.named(target, rows, ["row"])}
            lacking = [row for row in rows if row not in there]
            copied: dict[int, Row] = {}
            while lacking:
                fields = ("row", "judged", "payload", "vector")
                now = {row["row"]: row for row in self._server.named(source, lacking, fields)}
                changed = [row for row in now.values() if copied.get(row["row"]) != row]
                self._server.upsert(target, ((row, size_of(row)) for row in changed))
                copied |= now
                lacking = [row["row"] for row in changed]

    def _wait_for_index(self, name: str) -> None:
        """Until all rows are in closed segments, and then until these are indexed and in use."""
        self._server.seal(name)
        deadline = time.monotonic() + INDEX_SECONDS
        while any(
            segment.num_rows >= SMALL and not segment.indexID
            for segment in self._server.segments(name)
        ):
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{self._server.shown}: the index {self._location.kind} was not built in "
                    f"{INDEX_SECONDS:g} s; is the server set up for it? (DISKANN needs "
                    "queryNode.enableDisk and fast disks.) Until then all vectors are compared"
                )
            time.sleep(0.1)

    def index_status(self, number: int) -> IndexStatus:
        rows = self.count(number)
        if not self._is_indexed(number):
            begun = len(self._collections(number)) > 1
            state: IndexState = "building" if begun else "none"
            return IndexStatus(rows=rows, kind="flat", state=state, unindexed=rows)
        with self._server.errors():
            described = self._server.client.describe_index(
                f"{self._collection(number)}_index", "vector", timeout=SECONDS
            )
        unindexed = int(described.get("pending_index_rows") or 0)
        failure = described.get("index_state_fail_reason") or None
        state = "failed" if described.get("state") == "Failed" else "ready"
        if state == "ready" and unindexed >= self._location.index_from:
            state = "building"
        return IndexStatus(
            rows, str(described["index_type"]).lower(), state, unindexed, None, failure
        )

    def index_payload(self, path: Path) -> None:
        kind = self._kind_of(path)
        if kind is None:
            raise GalleryError(f"{self._server.shown}: no item has {'.'.join(path)!r}; add some")
        for name in self._collections():
            self._server.index_field(name, path, kind)

    def _kind_of(self, path: Path) -> str | None:
        """What a field holds, by the first item that has it: as Milvus casts for its index."""
        field = field_of(path)
        for name in self._collections() if field is not None else ():
            for row in self._server.query(name, f"exists {field}", ["payload"], limit=1):
                value = row["payload"]
                for key in path:
                    value = value[key]
                return next(word for kind, word in CASTS if isinstance(value, kind))
        return None

    def vacuum(self) -> None:
        """Close the segments that still grow, which are searched more slowly, and compact."""
        for name in self._collections():
            self._server.seal(name)
            if not self._server.version.startswith(COMPACTS_WRONGLY):
                with self._server.errors():
                    self._server.client.compact(name, timeout=SECONDS)
