"""Qdrant: one collection per space, whose points have the row as their number.

A point's payload holds the item's payload under one key, and a flag for each space that supersedes
it. Qdrant changes vectors that it compares by cosine, so it is given unit vectors and compares by
inner product; a vector of another length is kept alongside and comes back bit for bit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from midspan.errors import StoreError
from midspan.gallery.engines.base import Candidates, IndexState, IndexStatus, SearchRequest
from midspan.gallery.engines.qdrant_connection import (
    PAYLOAD,
    RAW,
    SUPERSEDED,
    QdrantConnection,
    QdrantLocation,
    as_arrays,
    as_points,
    condition,
    copy_indexes,
    create_index,
    index_field,
    qdrant_location,
)
from midspan.gallery.engines.remote import (
    STREAMS,
    RemoteEngine,
    SpaceCandidates,
    VectorShape,
    best_of,
    chunks,
    scored,
    search_server,
    send,
)
from midspan.gallery.filters import Path
from midspan.gallery.location import Location
from midspan.spaces import FloatArray, IntArray, Metric, Space

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from midspan.gallery.catalogue.catalogue import Catalogue

ROWS = 1000  # in one request
BYTES = 8_000_000  # in one request; Qdrant takes 32 MB
ANSWER_BYTES = 32_000_000  # of vectors in one answer
SCAN_FROM = 10_000  # candidates; for more all vectors are sooner fetched and compared here
INDEX_SECONDS = 3600.0
DISTANCES: dict[Metric, str] = {"cosine": "Dot", "dot": "Dot", "l2": "Euclid"}


class QdrantEngine(RemoteEngine):
    def __init__(self, catalogue: Catalogue, location: QdrantLocation, *, shown: str) -> None:
        self._location, self._server = location, QdrantConnection(location, shown=shown)
        super().__init__(catalogue, self._server, name=location.name, recorded=location.recorded)
        self._flags: set[tuple[int, int]] = set()  # that have a payload index

    @classmethod
    def connect(
        cls, location: Location, catalogue: Catalogue, *, created_with: Mapping[str, str] | None
    ) -> Self:
        return cls(
            catalogue, qdrant_location(location, created_with=created_with), shown=location.shown
        )

    # ---- spaces

    def create_space(
        self, number: int, space: Space, *, connection: Connection | None = None
    ) -> None:
        from qdrant_client import models

        layout, name = self._location.layout, self._collection(number)
        codes = models.ScalarQuantization(
            scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
        )
        vectors = models.VectorParams(
            size=space.dim,
            distance=models.Distance(DISTANCES[space.metric]),
            on_disk=layout.on_disk,
            hnsw_config=models.HnswConfigDiff(
                m=layout.m, ef_construct=layout.ef_construct, on_disk=layout.on_disk
            ),
            quantization_config=codes if layout.int8 else None,
        )
        with self._server.errors():
            if self._server.client.collection_exists(name):
                return
            self._server.client.create_collection(
                name,
                vectors_config={space.metric: vectors},  # so that a collection names its metric
                shard_number=layout.shards,
                replication_factor=layout.replicas,
                write_consistency_factor=layout.write_consistency,
                on_disk_payload=True,
            )
        copy_indexes(self._server, self._collections(), to=name)

    def drop_space(self, number: int, *, connection: Connection | None = None) -> None:
        with self._server.errors():
            self._server.client.delete_collection(self._collection(number))

    def _read_shape(self, number: int) -> VectorShape:
        with self._server.errors():
            info = self._server.client.get_collection(self._collection(number))
        ((metric, params),) = info.config.params.vectors.items()
        return VectorShape(metric, params.size)

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
        metric = self._shape(number).metric
        texts = payloads or ["{}"] * len(rows)
        points = as_points(rows.tolist(), vectors, texts, metric=metric)
        name, client = self._collection(number), self._server.client

        def upsert(chunk: list[Any]) -> None:
            with self._server.errors():
                client.upsert(name, chunk, wait=True)

        streams = STREAMS if len(rows) > ROWS and not self._server.local else 1
        send(chunks(points, rows=ROWS, size=BYTES), upsert, streams=streams)

    def delete(self, rows: IntArray, *, connection: Connection | None = None) -> None:
        from qdrant_client import models

        for name in self._collections():
            for start in range(0, len(rows), ROWS):
                ids: list[Any] = rows[start : start + ROWS].tolist()
                selector = models.PointIdsList(points=ids)
                with self._server.errors():
                    self._server.client.delete(name, selector, wait=True)

    def supersede(self, number: int, rows: IntArray, *, by: int) -> None:
        name, flag = self._collection(number), f"{SUPERSEDED}{by}"
        self._index_flag(number, by)
        for ids in self._there(name, rows.tolist()):
            with self._server.errors():
                self._server.client.set_payload(name, {flag: True}, points=ids, wait=True)

    def _index_flag(self, number: int, by: int) -> None:
        """So that a search can pass over superseded points without reading their payload."""
        if self._server.local or (number, by) in self._flags:
            return
        create_index(self._server, self._collection(number), f"{SUPERSEDED}{by}", "bool")
        self._flags.add((number, by))

    def set_payload(self, payloads: Mapping[int, str]) -> None:
        from qdrant_client import models

        for name in self._collections():
            for ids in self._there(name, list(payloads)):
                operations = [
                    models.SetPayloadOperation(
                        set_payload=models.SetPayload(
                            payload={PAYLOAD: json.loads(payloads[row])}, points=[row]
                        )
                    )
                    for row in ids
                ]
                with self._server.errors():
                    self._server.client.batch_update_points(name, operations, wait=True)

    def _there(self, name: str, rows: Sequence[int]) -> Iterator[list[int]]:
        """Those that exist, in chunks: Qdrant refuses to change one that does not."""
        for start in range(0, len(rows), ROWS):
            with self._server.errors():
                points = self._server.client.retrieve(
                    name, rows[start : start + ROWS], with_payload=False
                )
            if points:
                yield [point.id for point in points]

    def _vectors(self, number: int, rows: list[int]) -> dict[int, Any]:
        dim = self._shape(number).dim
        by_row: dict[int, Any] = {}
        size = max(1, min(ROWS, ANSWER_BYTES // (4 * dim)))
        for start in range(0, len(rows), size):
            with self._server.errors():
                points = self._server.client.retrieve(
                    self._collection(number),
                    rows[start : start + size],
                    with_payload=[RAW],
                    with_vectors=True,
                    **self._reading(),
                )
            there, vectors = as_arrays(points, dim=dim)
            by_row |= dict(zip(there.tolist(), vectors, strict=True))
        return by_row

    def rows(self, number: int, *, after: int, limit: int) -> IntArray:
        with self._server.errors():
            points, _ = self._server.client.scroll(
                self._collection(number),
                offset=after + 1,
                limit=limit,
                with_payload=False,
                **self._reading(),
            )
        return np.array([point.id for point in points], np.int64)

    def count(self, number: int) -> int:
        with self._server.errors():
            return int(self._server.client.count(self._collection(number), exact=True).count)

    def _reading(self) -> dict[str, Any]:
        """With several replicas, what most of them say."""
        return {"consistency": "majority"} if self._location.layout.replicas > 1 else {}

    # ---- search

    def search(self, request: SearchRequest) -> list[Candidates]:
        metric = self._shape(request.among[0]).metric

        def probe(number: int, queries: FloatArray, limit: int) -> list[SpaceCandidates]:
            where = condition(request, number)
            if limit > SCAN_FROM:
                return best_of(self._scan(number, where), queries, limit=limit, metric=metric)
            return self._probe(number, queries, limit, where, exact=request.exact)

        return search_server(request, self._catalogue, metric=metric, fetch=self.fetch, probe=probe)

    def _probe(
        self, number: int, queries: FloatArray, limit: int, where: Any, *, exact: bool
    ) -> list[SpaceCandidates]:
        from qdrant_client import models

        shape = self._shape(number)
        results: list[SpaceCandidates] = []
        at_once = max(1, ANSWER_BYTES // (4 * shape.dim * limit))
        for start in range(0, len(queries), at_once):
            part = queries[start : start + at_once]
            requests = [
                models.QueryRequest(
                    query=query.tolist(),
                    using=shape.metric,
                    filter=where,
                    limit=limit,
                    params=self._params(exact=exact, limit=limit),
                    with_payload=[RAW],
                    with_vector=True,
                )
                for query in part
            ]
            with self._server.errors():
                answers = self._server.client.query_batch_points(
                    self._collection(number), requests, **self._reading()
                )
            for query, answer in zip(part, answers, strict=True):
                points = answer.points
                if len(points) < limit and not exact and not self._server.local:
                    # An index may end early behind a filter: then the answer is not all there is.
                    results += self._probe(number, query[None], limit, where, exact=True)
                    continue
                rows, vectors = as_arrays(points, dim=shape.dim)
                cut = _score(points[-1], shape.metric) if len(points) >= limit else None
                results.append(scored(query, rows, vectors, metric=shape.metric, cut=cut))
        return results

    def _params(self, *, exact: bool, limit: int) -> Any:
        from qdrant_client import models

        if self._server.local:  # which compares all
            return None
        codes = models.QuantizationSearchParams(
            ignore=exact,
            rescore=self._location.rescore,
            oversampling=self._location.oversampling,
        )
        return models.SearchParams(
            hnsw_ef=max(self._location.ef, 2 * limit),
            exact=exact,
            quantization=codes if self._location.layout.int8 else None,
        )

    def _scan(self, number: int, where: Any) -> Iterator[tuple[IntArray, FloatArray]]:
        dim = self._shape(number).dim
        after: Any = 0
        while after is not None:
            with self._server.errors():
                points, after = self._server.client.scroll(
                    self._collection(number),
                    scroll_filter=where,
                    offset=after,
                    limit=max(1, min(SCAN_FROM, BYTES // (4 * dim))),
                    with_payload=[RAW],
                    with_vectors=True,
                    **self._reading(),
                )
            yield as_arrays(points, dim=dim)

    # ---- index: Qdrant builds HNSW by itself, by segments

    def needs_index(self, number: int) -> bool:
        if self._server.local:
            return False
        status = self.index_status(number)
        return status.unindexed >= self._location.index_from and status.state != "building"

    def build_index(self, number: int) -> None:
        """Qdrant indexes segments above a size; that size is lowered if these are smaller."""
        from qdrant_client import models

        if self._server.local:
            return
        name, dim = self._collection(number), self._shape(number).dim
        with self._server.errors():
            info = self._server.client.get_collection(name)
            kilobytes = (info.points_count or 0) * dim * 4 // 1024
            smallest = max(1, kilobytes // max(1, info.segments_count) // 2)
            present = info.config.optimizer_config.indexing_threshold
            if present is None or smallest < present:
                self._server.client.update_collection(
                    name,
                    optimizers_config=models.OptimizersConfigDiff(indexing_threshold=smallest),
                )
        deadline = time.monotonic() + INDEX_SECONDS
        while (status := self.index_status(number)).state == "building":
            if time.monotonic() > deadline:
                raise StoreError(
                    f"{self._server.shown}: the index of space {number} was not built in "
                    f"{INDEX_SECONDS:g} s ({status.unindexed} vectors are left); it is still "
                    "being built: look again later"
                )
            time.sleep(0.2)
        if status.state == "failed":
            raise StoreError(f"{self._server.shown}: Qdrant's optimiser failed: {status.failure}")

    def index_status(self, number: int) -> IndexStatus:
        rows = self.count(number)
        if self._server.local:
            return IndexStatus(rows=rows, kind="flat", state="none", unindexed=rows)
        with self._server.errors():
            info = self._server.client.get_collection(self._collection(number))
        failure = getattr(info.optimizer_status, "error", None)
        indexed = min(rows, info.indexed_vectors_count or 0)
        state: IndexState = "ready" if indexed else "none"
        if failure is not None or info.status == "red":
            state, failure = "failed", failure or "the collection is red"
        elif info.status == "yellow":
            state = "building"
        return IndexStatus(
            rows=rows,
            kind="hnsw" if indexed else "flat",
            state=state,
            unindexed=rows - indexed,
            failure=failure,
        )

    def index_payload(self, path: Path) -> None:
        index_field(self._server, self._collections(), path)

    def vacuum(self) -> None:
        """Qdrant's optimisers return what was deleted by themselves."""


def _score(point: Any, metric: Metric) -> float:
    """By Qdrant's arithmetic, in our sense: it gives distances for l2."""
    return -(point.score**2) if metric == "l2" else float(point.score)
