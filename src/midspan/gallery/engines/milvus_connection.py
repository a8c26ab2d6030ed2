"""The connection to a Milvus server or to Milvus Lite, and its errors in plain words."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from midspan.errors import GalleryError, MissingDependency, StoreError
from midspan.gallery.engines.milvus_location import MilvusLocation
from midspan.gallery.engines.remote import (
    STREAMS,
    ClientGuard,
    FilterDialect,
    MissingCollection,
    SpaceCandidates,
    VectorShape,
    chunks,
    first_line,
    scored,
    send,
    translate,
    unreachable,
)
from midspan.gallery.filters import Filter, Path, Scalar
from midspan.spaces import FloatArray

SECONDS = 20.0  # after which an answer is no longer waited for
LOAD_SECONDS = 120.0
SEAL_SECONDS = 60.0
SEALED = 3  # Milvus' number for a segment that takes no more rows
MOST = 16_384  # rows of one answer
ROWS = 2000  # in one request
BYTES = 4_000_000  # in one request
PAYLOAD = 50_000  # bytes that Milvus can filter by; it takes 65,536

NOT_FOUND = (100, 1600)  # Milvus' codes: no such collection, no such alias

_lite: Counter[str] = Counter()  # users of each file of Milvus Lite
_guard = threading.Lock()

Row = dict[str, Any]


class MilvusConnection:
    def __init__(self, location: MilvusLocation, *, shown: str) -> None:
        try:
            import pymilvus  # type: ignore[import-untyped]

            if location.local:
                import milvus_lite  # type: ignore[import-untyped]  # noqa: F401
        except ImportError as error:
            library = "milvus-lite" if location.local else "pymilvus"
            raise MissingDependency(
                library, extra="milvus", required_for="a gallery in Milvus"
            ) from error
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it prints a trace per error
        self.shown, self.location = shown, location
        self._error: type[Exception] = pymilvus.MilvusException
        self._handle = ClientGuard(shown)
        with self.errors():
            self._client: Any = pymilvus.MilvusClient(
                uri=location.uri,
                token=location.token,
                db_name=location.database,
                timeout=SECONDS,
            )
            self.version = str(self._client.get_server_version(timeout=SECONDS)).lstrip("v")
        if location.local:
            with _guard:
                _lite[location.uri] += 1

    def close(self) -> None:
        if not self._handle.open:
            return
        self._handle.open = False
        self._client.close()
        if self.location.local:
            self._close_lite()

    def _close_lite(self) -> None:
        """The last one in this process gives the file free for others."""
        from milvus_lite.server_manager import (  # type: ignore[import-untyped]
            server_manager_instance,
        )

        with _guard:
            _lite[self.location.uri] -= 1
            if not _lite[self.location.uri]:
                server_manager_instance.release_server(self.location.uri)

    @property
    def client(self) -> Any:
        self._handle.check()
        return self._client

    @contextmanager
    def errors(self) -> Iterator[None]:
        import grpc  # type: ignore[import-untyped]

        try:
            yield
        except (self._error, grpc.RpcError, ConnectionError) as error:
            raise self._in_words(error) from error

    def _in_words(self, error: Exception) -> StoreError:
        code = getattr(error, "code", None)
        if code in NOT_FOUND:
            return MissingCollection(f"{self.shown}: {first_line(error)}")
        if isinstance(code, int) and not isinstance(code, bool) and code > 2:
            return StoreError(f"{self.shown}: {first_line(error)}")
        return unreachable(error, shown=self.shown)

    # ---- collections

    def collections(self) -> list[str]:
        with self.errors():
            return list(self.client.list_collections(timeout=SECONDS))

    def behind(self, alias: str) -> str | None:
        """The collection that an alias names."""
        try:
            with self.errors():
                described = self.client.describe_alias(alias, timeout=SECONDS)
        except MissingCollection:
            return None
        return str(described["collection_name"])

    def point(self, alias: str, collection: str) -> None:
        with self.errors():
            if self.behind(alias) is None:
                self.client.create_alias(collection, alias, timeout=SECONDS)
            else:
                self.client.alter_alias(collection, alias, timeout=SECONDS)

    def make(self, name: str, *, dim: int, index: Mapping[str, Any]) -> None:
        """Loading takes a server a second or two: it is begun here, and `load` waits for it."""
        from pymilvus import DataType

        partitions = self.location.partitions
        with self.errors():
            client = self.client
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("row", DataType.INT64, is_primary=True)
            schema.add_field("judged", DataType.BOOL)  # its payload is here to be filtered by
            schema.add_field("payload", DataType.JSON)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
            if partitions:
                schema.add_field("part", DataType.INT64, is_partition_key=True)
            client.create_collection(
                name,
                schema=schema,
                num_shards=self.location.shards,
                timeout=SECONDS,
                **({"num_partitions": partitions} if partitions else {}),
            )
            connection = client._get_connection()
            connection.create_index(name, "vector", index, sync=False, timeout=SECONDS)
            connection.load_collection(name, _async=True, timeout=SECONDS)

    def load(self, name: str) -> None:
        with self.errors():
            connection = self.client._get_connection()
            connection.load_collection(name, _async=True, timeout=SECONDS)
            deadline = time.monotonic() + LOAD_SECONDS
            while connection.get_loading_progress(name, timeout=SECONDS) < 100:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{self.shown}: the server did not load {name} in {LOAD_SECONDS:g} s; has "
                        "it memory left?"
                    )
                time.sleep(0.02)

    def seal(self, name: str) -> None:
        """Close the segments that still grow, and wait until those who answer have the closed."""
        with self.errors():
            self.client.flush(name)
        self.load(name)
        if self.location.local or not self.query(name, "row >= 0", ["row"], limit=1):
            return
        deadline = time.monotonic() + SEAL_SECONDS
        while time.monotonic() < deadline:  # if others write meanwhile, one always grows
            segments = self.segments(name)
            if segments and all(segment.state == SEALED for segment in segments):
                return
            time.sleep(0.1)

    def segments(self, name: str) -> list[Any]:
        """The parts of a collection, as those who answer have them; Milvus Lite has none."""
        if self.location.local:
            return []
        with self.errors():
            return list(self.client._get_connection().get_query_segment_info(name))

    def drop(self, name: str) -> None:
        with self.errors():
            self.client.drop_collection(name, timeout=SECONDS)

    def index_field(self, name: str, path: Path, kind: str) -> None:
        """An index on a field of the payload, which Milvus has since 2.5.11."""
        field, shown = field_of(path), ".".join(path)
        digest = hashlib.sha256(json.dumps(path).encode()).hexdigest()[:8]
        try:
            with self.errors():
                params = self.client.prepare_index_params()
                params.add_index(
                    "payload",
                    index_type="INVERTED",
                    index_name=f"payload_{digest}",
                    params={"json_path": field, "json_cast_type": kind},
                )
                self.client.create_index(name, params, timeout=SECONDS)
        except StoreError as error:
            raise GalleryError(
                f"{self.shown}: Milvus {self.version} made no index on {shown!r} ({error}); it has "
                "indexes on JSON since 2.5.11, and Milvus Lite has none. Update the server, or go "
                "without: filters give the same answers"
            ) from error

    # ---- rows

    def upsert(self, name: str, rows: Iterable[tuple[Row, int]]) -> None:
        """Of (row, its bytes)."""
        parts = self.location.partitions

        def upsert(chunk: list[Row]) -> None:
            data = [{**row, "part": row["row"]} for row in chunk] if parts else chunk
            with self.errors():
                self.client.upsert(name, data, timeout=SECONDS)

        streams = 1 if self.location.local else STREAMS
        send(chunks(rows, rows=ROWS, size=BYTES), upsert, streams=streams)

    def delete(self, name: str, rows: Sequence[int]) -> None:
        for start in range(0, len(rows), ROWS):
            some = _among(rows[start : start + ROWS])
            with self.errors():
                self.client.delete(name, filter=some, timeout=SECONDS)

    def query(
        self, name: str, where: str, fields: Sequence[str], *, limit: int | None = None
    ) -> list[Row]:
        """With a limit: those of the smallest rows, by their number."""
        with self.errors():
            records = self.client.query(
                name,
                filter=where,
                output_fields=list(fields),
                timeout=SECONDS,
                consistency_level="Strong",
                **({} if limit is None else {"limit": limit}),
            )
        return list(records)

    def named(self, name: str, rows: Sequence[int], fields: Sequence[str]) -> Iterator[Row]:
        size = max(1, min(ROWS, BYTES // 4096)) if "vector" in fields else ROWS
        for start in range(0, len(rows), size):
            yield from self.query(name, _among(rows[start : start + size]), fields)


def _among(rows: Sequence[int]) -> str:
    return f"row in [{','.join(map(str, rows))}]"


# ---- rows and filters in Milvus' own form --------------------------------------------------------

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_ .-]*")  # digits would lead into lists
_TEXT = re.compile(r"[^\"'\\\x00-\x1f\x7f]*")


def as_records(
    rows: Sequence[int], vectors: FloatArray, texts: Sequence[str]
) -> Iterator[tuple[Row, int]]:
    for row, vector, text in zip(rows, vectors, texts, strict=True):
        judged = len(text.encode()) <= PAYLOAD
        payload = json.loads(text) if judged else {}
        record = {"row": row, "judged": judged, "payload": payload, "vector": vector}
        yield record, 200 + 4 * len(vector) + len(text)


def size_of(row: Row) -> int:
    return 200 + 4 * len(row["vector"]) + len(str(row["payload"]))


def found_of(
    query: FloatArray, hits: Sequence[Any], *, limit: int, shape: VectorShape
) -> SpaceCandidates:
    rows = np.array([hit["id"] if "id" in hit else hit["row"] for hit in hits], np.int64)
    vectors = np.array([hit["entity"]["vector"] for hit in hits], np.float32)
    cut = None
    if len(hits) >= limit:
        last = float(hits[-1]["distance"])
        cut = -last if shape.metric == "l2" else last
    vectors = vectors.reshape(-1, shape.dim)
    return scored(query, rows, vectors, metric=shape.metric, cut=cut)


def where_of(filter: Filter | None) -> str:
    """What all rows that pass fulfil; "" lets every row through."""
    word = None if filter is None else translate(filter, MILVUS)
    return f"judged == false or ({word})" if word else ""


def field_of(path: Path) -> str | None:
    """As Milvus' expressions name it; None if they cannot."""
    if not all(_KEY.fullmatch(key) for key in path):
        return None
    return "payload" + "".join(f'["{key}"]' for key in path)


def _compare(path: Path, operator: str, value: Scalar) -> str | None:
    field = field_of(path)
    return None if field is None else compare_field(field, operator, value)


def compare_field(field: str, operator: str, value: Scalar) -> str | None:
    if isinstance(value, bool):
        return f"{field} {operator} {str(value).lower()}"
    if isinstance(value, str):
        return f'{field} {operator} "{value}"' if _TEXT.fullmatch(value) else None
    return f"{field} {operator} {value!r}"


MILVUS: FilterDialect[str] = FilterDialect(
    compare=_compare,
    every=lambda words: " and ".join(f"({word})" for word in words),
    some=lambda words: " or ".join(f"({word})" for word in words),
)
