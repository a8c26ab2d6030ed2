"""Collections of an application on a vector server, Qdrant or Milvus: read, never written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from midspan.errors import GalleryError
from midspan.gallery.adoption.collection import (
    CollectionBinding,
    NearestPoints,
    highest_mark,
    only,
)
from midspan.gallery.adoption.files import VectorBatch
from midspan.gallery.adoption.survey import condition_of
from midspan.gallery.engines.base import pair_scores, prepare
from midspan.gallery.engines.milvus_connection import (
    MILVUS,
    MOST,
    SECONDS,
    MilvusConnection,
    compare_field,
)
from midspan.gallery.engines.milvus_location import milvus_location
from midspan.gallery.engines.qdrant_connection import (
    QDRANT,
    QdrantConnection,
    compare,
    qdrant_location,
)
from midspan.gallery.engines.remote import FilterDialect, translate
from midspan.gallery.filters import Filter, Path, Scalar
from midspan.gallery.location import Location
from midspan.spaces import FloatArray, Metric, Space

QDRANT_METRICS: dict[str, Metric] = {"Cosine": "cosine", "Dot": "dot", "Euclid": "l2"}
PAGE = 1000  # points in one answer


class QdrantCollection:
    space: Space | None = None

    def __init__(self, location: Location, binding: CollectionBinding) -> None:
        self._binding, self._name = binding, binding.collection
        self._server = QdrantConnection(qdrant_location(location), shown=location.shown)
        try:
            params = self._params()
        except BaseException:
            self._server.close()
            raise
        self.shown = f"{location.shown}: collection {self._name}"
        self.dim = int(params.size)
        self.metric: Metric | None = QDRANT_METRICS[params.distance.value]
        with self._server.errors():
            self.rows = int(self._server.client.count(self._name, exact=True).count)

    def _params(self) -> Any:
        client, shown = self._server.client, self._server.shown
        with self._server.errors():
            if not client.collection_exists(self._name):
                raise GalleryError(f"{shown}: there is no collection {self._name!r}")
            vectors = client.get_collection(self._name).config.params.vectors
        named = vectors if isinstance(vectors, dict) else {"": vectors}
        chosen = self._binding.vector
        if chosen not in named:
            there = ", ".join(repr(name) for name in named) or "none"
            raise GalleryError(
                f"{shown}: collection {self._name!r} has the vectors {there}, not {chosen!r}; "
                "choose one with `vector_name`"
            )
        params = named[chosen]
        if getattr(params, "multivector_config", None) is not None:
            raise GalleryError(
                f"{shown}: the vectors {chosen!r} are several for each point; expected one"
            )
        if params.distance.value not in QDRANT_METRICS:
            raise GalleryError(
                f"{shown}: compared by {params.distance.value}; "
                f"expected {', '.join(QDRANT_METRICS)}"
            )
        return params

    def close(self) -> None:
        self._server.close()

    def parts(self, size: int, *, since: float | None = None) -> Iterator[VectorBatch]:
        after: Any = None
        where = None if since is None else self._since(since)
        while True:
            with self._server.errors():
                points, after = self._server.client.scroll(
                    self._name,
                    scroll_filter=where,
                    offset=after,
                    limit=min(size, PAGE),
                    with_payload=self._fields(),
                    with_vectors=self._with_vectors(),
                )
            if points:
                yield self._part(points)
            if after is None:
                return

    def _part(self, points: Sequence[Any]) -> VectorBatch:
        binding = self._binding
        payloads = [point.payload or {} for point in points]
        uris = None
        if binding.uri is not None:
            values = [payload.get(binding.uri) for payload in payloads]
            uris = [None if value is None else str(value) for value in values]
        return VectorBatch(
            [str(point.id) for point in points],
            self._vectors(points),
            uris,
            [only(payload, binding.payload) for payload in payloads],
            highest_mark(payloads, binding),
        )

    def fetch(self, keys: Sequence[str]) -> tuple[list[str], FloatArray]:
        points: list[Any] = []
        for start in range(0, len(keys), PAGE):
            some = [_qdrant_id(key) for key in keys[start : start + PAGE]]
            with self._server.errors():
                points += self._server.client.retrieve(
                    self._name, some, with_payload=False, with_vectors=self._with_vectors()
                )
        return [str(point.id) for point in points], self._vectors(points)

    def search(
        self, query: FloatArray, *, limit: int, filter: Filter | None, exact: bool
    ) -> NearestPoints:
        from qdrant_client import models

        where = None if filter is None else translate(filter, self._language())
        params = None if self._server.local else models.SearchParams(exact=exact)
        with self._server.errors():
            points = self._server.client.query_points(
                self._name,
                query=query.tolist(),
                using=self._binding.vector or None,
                query_filter=None if where is None else models.Filter(must=[where]),
                limit=limit,
                search_params=params,
                with_payload=False,
                with_vectors=self._with_vectors(),
            ).points
        cut = None
        if len(points) >= limit:
            last = float(points[-1].score)
            cut = -(last**2) if self.metric == "l2" else last
        elif not exact and not self._server.local and filter is not None:
            return self.search(query, limit=limit, filter=filter, exact=True)
        return NearestPoints([str(point.id) for point in points], self._vectors(points), cut)

    def watermark(self) -> float | None:
        marks, after = list[float | None](), None
        while self._binding.watermark is not None:
            with self._server.errors():
                points, after = self._server.client.scroll(
                    self._name, offset=after, limit=PAGE, with_payload=[self._binding.watermark]
                )
            marks.append(highest_mark([point.payload or {} for point in points], self._binding))
            if after is None:
                break
        return max((mark for mark in marks if mark is not None), default=None)

    def index(self) -> str | None:
        if self._server.local:
            return None
        with self._server.errors():
            info = self._server.client.get_collection(self._name)
        return "hnsw" if info.indexed_vectors_count else None

    # ---- below

    def _fields(self) -> list[str]:
        binding = self._binding
        more = (binding.uri, binding.watermark)
        return [*binding.payload, *(name for name in more if name is not None)]

    def _with_vectors(self) -> bool | list[str]:
        return [self._binding.vector] if self._binding.vector else True

    def _vectors(self, points: Sequence[Any]) -> FloatArray:
        """(N, D); NaN where a point has no such vector."""
        matrix = np.full((len(points), self.dim), np.nan, dtype=np.float32)
        for place, point in enumerate(points):
            vector = point.vector
            if isinstance(vector, dict):
                vector = vector.get(self._binding.vector)
            if vector is not None:
                matrix[place] = vector
        return matrix

    def _since(self, since: float) -> Any:
        from qdrant_client import models

        assert self._binding.watermark is not None
        condition = models.FieldCondition(
            key=self._binding.watermark, range=models.Range(gte=since)
        )
        return models.Filter(must=[condition])

    def _language(self) -> FilterDialect[Any]:
        known = self._binding.payload

        def own(path: Path, operator: str, value: Scalar) -> Any:
            return compare(path, operator, value, under=()) if path[0] in known else None

        return FilterDialect(compare=own, every=QDRANT.every, some=QDRANT.some)


def _qdrant_id(key: str) -> int | str:
    return int(key) if key.isascii() and key.isdigit() else key


# ---- a collection of an application in Milvus or Milvus Lite -------------------------------------

MILVUS_METRICS: dict[str, Metric] = {"COSINE": "cosine", "IP": "dot", "L2": "l2"}


class MilvusCollection:
    """Filters that scalar fields can judge are Milvus' own; the gallery judges what is left."""

    space: Space | None = None

    def __init__(self, location: Location, binding: CollectionBinding) -> None:
        self._binding, self._name = binding, binding.collection
        self._server = MilvusConnection(milvus_location(location), shown=location.shown)
        try:
            self._look()
        except BaseException:
            self._server.close()
            raise
        self.shown = f"{location.shown}: collection {self._name}"

    def _look(self) -> None:
        client, shown, chosen = self._server.client, self._server.shown, self._binding.vector
        with self._server.errors():
            if not client.has_collection(self._name, timeout=SECONDS):
                raise GalleryError(f"{shown}: there is no collection {self._name!r}")
            fields = client.describe_collection(self._name, timeout=SECONDS)["fields"]
        by_name = {field["name"]: field for field in fields}
        vectors = [name for name, field in by_name.items() if "dim" in (field.get("params") or {})]
        if chosen not in vectors:
            raise GalleryError(
                f"{shown}: collection {self._name!r} has the vectors {vectors}, not {chosen!r}; "
                "choose one with `vector_name`"
            )
        (self._key,) = (name for name, field in by_name.items() if field.get("is_primary"))
        self._kinds = {name: field["type"].name for name, field in by_name.items()}
        self._texts = self._kinds[self._key] == "VARCHAR"
        self.dim = int(by_name[chosen]["params"]["dim"])
        with self._server.errors():
            described = client.describe_index(self._name, chosen, timeout=SECONDS)
            self._index = described or {}
            client.load_collection(self._name, timeout=SECONDS)
        metric = str(self._index.get("metric_type", "COSINE"))
        if metric not in MILVUS_METRICS:
            raise GalleryError(
                f"{shown}: compared by {metric}; expected {', '.join(MILVUS_METRICS)}"
            )
        self._metric = metric
        self.metric: Metric | None = MILVUS_METRICS[metric]
        self.rows = self._count("")
        known = [*self._binding.payload, self._binding.uri, self._binding.watermark]
        for name in known:
            if name is not None and name not in by_name:
                raise GalleryError(
                    f"{shown}: collection {self._name!r} has no field {name!r}; it has "
                    f"{', '.join(by_name)}"
                )

    def close(self) -> None:
        self._server.close()

    def parts(self, size: int, *, since: float | None = None) -> Iterator[VectorBatch]:
        mark = "" if since is None else f"{self._binding.watermark} >= {since!r}"
        for rows in self._pages(mark, self._fields(), size=size):
            yield self._part(rows)

    def _pages(self, where: str, fields: list[str], *, size: int = PAGE) -> Iterator[Sequence[Any]]:
        with self._server.errors():
            pages = self._server.client.query_iterator(
                self._name,
                batch_size=min(size, PAGE),
                filter=where,
                output_fields=fields,
                consistency_level="Strong",
            )
        try:
            while True:
                with self._server.errors():
                    rows = pages.next()
                if not rows:
                    return
                yield rows
        finally:
            pages.close()

    def _part(self, rows: Sequence[Any]) -> VectorBatch:
        binding, uris = self._binding, None
        if binding.uri is not None:
            values = [row.get(binding.uri) for row in rows]
            uris = [None if value is None else str(value) for value in values]
        return VectorBatch(
            [str(row[self._key]) for row in rows],
            self._vectors(rows),
            uris,
            [only(row, binding.payload) for row in rows],
            highest_mark(rows, binding),
        )

    def fetch(self, keys: Sequence[str]) -> tuple[list[str], FloatArray]:
        records: list[Any] = []
        for start in range(0, len(keys), PAGE):
            some = keys[start : start + PAGE]
            given = json.dumps(some if self._texts else [int(key) for key in some])
            with self._server.errors():
                records += self._server.client.query(
                    self._name,
                    filter=f"{self._key} in {given}",
                    output_fields=[self._key, self._binding.vector],
                    consistency_level="Strong",
                    timeout=SECONDS,
                )
        return [str(row[self._key]) for row in records], self._vectors(records)

    def search(
        self, query: FloatArray, *, limit: int, filter: Filter | None, exact: bool
    ) -> NearestPoints:
        where = (None if filter is None else translate(filter, self._language())) or ""
        if limit > MOST or (exact and self.index() is not None):
            return self._scan(query, limit, where)
        with self._server.errors():
            ((*hits,),) = self._server.client.search(
                self._name,
                data=[query.tolist()],
                anns_field=self._binding.vector,
                filter=where,
                limit=limit,
                output_fields=[self._key, self._binding.vector],
                search_params={"metric_type": self._metric},
                consistency_level="Strong",
                timeout=SECONDS,
            )
        rows = [hit["entity"] for hit in hits]
        cut = None
        if len(hits) >= limit:
            last = float(hits[-1]["distance"])
            cut = -last if self.metric == "l2" else last
        elif self.index() is not None and self._count(where) > len(hits):
            return self._scan(query, limit, where)  # an index may end before it has found all
        return NearestPoints([str(row[self._key]) for row in rows], self._vectors(rows), cut)

    def _scan(self, query: FloatArray, limit: int, where: str) -> NearestPoints:
        """Every row that passes, compared here."""
        metric = self.metric or "cosine"
        best = NearestPoints([], np.empty((0, self.dim), np.float32), None)
        scores = np.empty(0, np.float32)
        for rows in self._pages(where, [self._key, self._binding.vector]):
            vectors = self._vectors(rows)
            places = np.flatnonzero(condition_of(vectors, metric)[1])
            vectors = vectors[places]
            ready = prepare(vectors, metric=metric)
            keys = [*best.keys, *(str(rows[place][self._key]) for place in places.tolist())]
            scores = np.r_[scores, pair_scores(query, ready, metric=metric)]
            vectors, cut = np.r_[best.vectors, vectors], best.cut
            order = np.argsort(-scores, kind="stable")
            if len(order) > limit:
                left = float(scores[order[limit]])
                cut = left if cut is None else max(cut, left)
                order = order[:limit]
            scores = scores[order]
            best = NearestPoints([keys[place] for place in order.tolist()], vectors[order], cut)
        return best

    def _count(self, where: str) -> int:
        with self._server.errors():
            counted = self._server.client.query(
                self._name,
                filter=where,
                output_fields=["count(*)"],
                consistency_level="Strong",
                timeout=SECONDS,
            )
        return int(counted[0]["count(*)"])

    def _language(self) -> FilterDialect[str]:
        """Words for scalar fields that hold such a value; else the gallery judges."""

        def own(path: Path, operator: str, value: Scalar) -> str | None:
            kind = self._kinds.get(path[0]) if path[0] in self._binding.payload else None
            if kind is None or len(path) > 1 or not _comparable(kind, value):
                return None
            return compare_field(path[0], operator, value)

        return FilterDialect(compare=own, every=MILVUS.every, some=MILVUS.some)

    def watermark(self) -> float | None:
        field = self._binding.watermark
        if field is None:
            return None
        marks = (highest_mark(rows, self._binding) for rows in self._pages("", [field]))
        return max((mark for mark in marks if mark is not None), default=None)

    def index(self) -> str | None:
        kind = str(self._index.get("index_type", "")).lower()
        return kind if kind not in ("", "flat") else None

    def _fields(self) -> list[str]:
        binding = self._binding
        more = (binding.uri, binding.watermark)
        named = [*binding.payload, *(name for name in more if name is not None)]
        return [self._key, binding.vector, *named]

    def _vectors(self, rows: Sequence[Any]) -> FloatArray:
        matrix = np.full((len(rows), self.dim), np.nan, dtype=np.float32)
        for place, row in enumerate(rows):
            if row.get(self._binding.vector) is not None:
                matrix[place] = row[self._binding.vector]
        return matrix


def _comparable(kind: str, value: Scalar) -> bool:
    """Whether a field of Milvus compares with this value as Python does."""
    if isinstance(value, bool):
        return kind == "BOOL"
    if isinstance(value, str):
        return kind == "VARCHAR"
    if kind.startswith("INT"):
        return isinstance(value, int)
    return kind == "DOUBLE" or (kind == "FLOAT" and float(np.float32(value)) == value)
