"""The Qdrant client, its errors in plain words, and rows and filters in its own form."""

from __future__ import annotations

import base64
import json
import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from midspan.errors import GalleryError, MissingDependency, StoreError
from midspan.gallery.engines.base import SearchRequest, prepare
from midspan.gallery.engines.remote import (
    ClientGuard,
    FilterDialect,
    MissingCollection,
    check_name,
    first_line,
    translate,
    unreachable,
)
from midspan.gallery.filters import Path, Scalar
from midspan.gallery.location import Location, LocationSettings
from midspan.spaces import FloatArray, IntArray, Metric

SECONDS = 20  # after which an answer is no longer waited for


@dataclass(slots=True)
class _Local:
    """A folder can be opened once only, so its galleries share one client."""

    client: Any
    users: int = 0
    guard: threading.RLock = field(default_factory=threading.RLock)  # it is not thread-safe


_opened: dict[str, _Local] = {}
_guard = threading.Lock()


class QdrantConnection:
    def __init__(self, location: QdrantLocation, *, shown: str) -> None:
        try:
            import qdrant_client
        except ImportError as error:
            raise MissingDependency(
                "qdrant-client", extra="qdrant", required_for="a gallery in Qdrant"
            ) from error
        self.shown = shown
        self._handle = ClientGuard(shown)
        self._folder = location.folder
        self._local: _Local | None = None
        if location.folder is not None:
            with self.errors():
                self._local = _open_local(location.folder)
            self._client: Any = self._local.client
            return
        self._client = qdrant_client.QdrantClient(
            url=location.url,
            api_key=os.environ.get(API_KEY),
            timeout=SECONDS,
            check_compatibility=False,
        )
        with self.errors():
            self._client.get_collections()

    @property
    def local(self) -> bool:
        return self._local is not None

    @property
    def client(self) -> Any:
        self._handle.check()
        return self._client

    def close(self) -> None:
        if not self._handle.open:
            return
        self._handle.open = False
        if self._folder is not None:
            _close_local(self._folder)
        else:
            self._client.close()

    def collections(self) -> list[str]:
        with self.errors():
            return [one.name for one in self.client.get_collections().collections]

    @contextmanager
    def errors(self) -> Iterator[None]:
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ApiException

        try:
            with nullcontext() if self._local is None else self._local.guard:
                yield
        except (ApiException, QdrantException, ConnectionError) as error:
            raise self._in_words(error) from error
        except (ValueError, RuntimeError, OSError, sqlite3.Error) as error:  # of local mode
            if "not found" in str(error):
                raise MissingCollection(f"{self.shown}: {error}") from error
            raise StoreError(f"{self.shown}: {first_line(error)}") from error

    def _in_words(self, error: Exception) -> StoreError:
        status = getattr(error, "status_code", None)
        if status == 404:
            return MissingCollection(f"{self.shown}: {_said(error)}")
        if status is not None and status < 500:
            return StoreError(f"{self.shown}: {_said(error)}")
        return unreachable(getattr(error, "source", error), shown=self.shown)


def _said(error: Any) -> str:
    """What the server wrote about it."""
    try:
        return str(error.structured()["status"]["error"])[:300]
    except (ValueError, KeyError, TypeError):
        return first_line(error)


def _open_local(folder: str) -> _Local:
    from qdrant_client import QdrantClient

    with _guard:
        local = _opened.get(folder)
        if local is None:
            memory = folder == MEMORY
            client = QdrantClient(
                location=MEMORY if memory else None,
                path=None if memory else folder,
                force_disable_check_same_thread=True,  # there is a guard
            )
            local = _opened[folder] = _Local(client)
        local.users += 1
        return local


def _close_local(folder: str) -> None:
    """What is in memory stays there until the process ends."""
    with _guard:
        local = _opened[folder]
        local.users -= 1
        if local.users == 0 and folder != MEMORY:
            local.client.close()
            del _opened[folder]


# ---- the location --------------------------------------------------------------------------------

PORT = 6333
API_KEY = "QDRANT_API_KEY"
EF = 200  # candidates that HNSW keeps; the same in all engines
INDEX_FROM = 20_000  # vectors outside the index; comparing fewer is fast enough
MEMORY = ":memory:"


@dataclass(frozen=True, slots=True)
class Layout:
    """How collections are created. Defaults: Qdrant's, unless said otherwise."""

    shards: int = 1  # Qdrant's own default depends on the number of its nodes
    replicas: int = 1
    write_consistency: int = 1  # replicas that must have a write; by default their majority
    on_disk: bool = False  # vectors are read from disk, not held in memory
    int8: bool = False  # codes of one byte a number in memory, for a first look
    m: int = 16  # HNSW
    ef_construct: int = 100


@dataclass(frozen=True, slots=True)
class QdrantLocation:
    url: str | None  # of a server
    folder: str | None  # or a folder, or :memory:
    name: str
    layout: Layout = Layout()
    ef: int = EF  # candidates of a search in HNSW
    rescore: bool = True  # what the codes found is compared by the vectors themselves
    oversampling: float = 2.0  # found by codes, for each one asked for
    index_from: int = INDEX_FROM
    recorded: Mapping[str, str] = field(default_factory=dict)  # what shapes the stored data


def qdrant_location(
    location: Location, *, created_with: Mapping[str, str] | None = None
) -> QdrantLocation:
    """Local mode compares every vector in one place: it has no settings."""
    settings = LocationSettings(location.settings, shown=location.shown, created_with=created_with)
    if location.scheme == "qdrant+local":
        settings.finish()
        folder, name = _local(location)
        return QdrantLocation(None, folder, name)
    address, name = _remote(location)
    secure, layout = settings.flag("tls"), _layout(settings)
    parsed = QdrantLocation(
        url=f"{'https' if secure else 'http'}://{address}",
        folder=None,
        name=name,
        layout=layout,
        ef=settings.whole("ef", EF, 1, 65_536),
        rescore=settings.choice("rescore", ("true", "false"), "true") == "true",
        oversampling=settings.number("oversampling", 2.0, 1, 100),
        index_from=settings.whole("index_from", INDEX_FROM, 1, 10**12),
        recorded=settings.recorded,
    )
    settings.finish()
    return parsed


def _layout(settings: LocationSettings) -> Layout:
    replicas = settings.whole("replicas", 1, 1, 64, record=True)
    majority = replicas // 2 + 1
    kind = settings.choice("quantisation", ("none", "int8"), "none", record=True)
    return Layout(
        shards=settings.whole("shards", 1, 1, 4096, record=True),
        replicas=replicas,
        write_consistency=settings.whole("write_consistency", majority, 1, replicas, record=True),
        on_disk=settings.flag("on_disk", record=True),
        int8=kind == "int8",
        m=settings.whole("m", 16, 0, 2048, record=True),
        ef_construct=settings.whole("ef_construct", 100, 4, 65_536, record=True),
    )


def _remote(location: Location) -> tuple[str, str]:
    parts, shown = urlsplit(location.url), location.shown
    expected = f"qdrant://host:{PORT}/NAME"
    if parts.username is not None or parts.password is not None:
        raise GalleryError(f"{shown}: a key does not belong in a location; set {API_KEY}")
    try:
        port = parts.port or PORT
    except ValueError as error:
        raise GalleryError(f"{shown}: {error}; expected {expected}") from error
    if not parts.hostname:
        raise GalleryError(f"{shown}: expected {expected}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}", check_name(parts.path.strip("/"), expected=expected, shown=shown)


def _local(location: Location) -> tuple[str, str]:
    parts, shown = urlsplit(location.url), location.shown
    expected = "qdrant+local:///FOLDER/NAME or qdrant+local://:memory:/NAME"
    folder, _, name = unquote(parts.path).rpartition("/")
    check_name(name, expected=expected, shown=shown)
    if parts.netloc == MEMORY and not folder:
        return MEMORY, name
    if parts.netloc or not folder:
        raise GalleryError(f"{shown}: expected {expected}, the folder from the root on")
    return folder, name


# ---- rows as points of Qdrant and back, and filters as its conditions ----------------------------

PAYLOAD, RAW, SUPERSEDED = "payload", "raw", "superseded_by_"  # keys of a point's payload
UNIT = 2e-6  # by which a length may differ from one; the scores are computed here anyway

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")  # what needs no quotes in a path
_BOUNDS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}


def as_points(
    rows: Sequence[int], vectors: FloatArray, texts: Sequence[str], *, metric: Metric
) -> Iterator[tuple[Any, int]]:
    """(point, its size as JSON)."""
    from qdrant_client import models

    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    raw = np.abs(lengths - 1) > UNIT if metric == "cosine" else np.zeros(len(vectors), bool)
    compared = np.where(raw[:, None], prepare(vectors, metric=metric), vectors)
    for place, (row, vector, text) in enumerate(zip(rows, compared.tolist(), texts, strict=True)):
        payload: dict[str, Any] = {PAYLOAD: json.loads(text)}
        if raw[place]:
            payload[RAW] = base64.b64encode(vectors[place].tobytes()).decode("ascii")
        point = models.PointStruct(id=row, vector={metric: vector}, payload=payload)
        yield point, 200 + 20 * len(vector) + len(text)


def as_arrays(points: Sequence[Any], *, dim: int) -> tuple[IntArray, FloatArray]:
    """(rows, vectors as they were put)."""
    rows = np.array([point.id for point in points], np.int64)
    vectors = np.array([_vector(point) for point in points], np.float32)
    return rows, vectors.reshape(-1, dim)


def _vector(point: Any) -> FloatArray:
    if RAW in (point.payload or {}):
        return np.frombuffer(base64.b64decode(point.payload[RAW]), dtype=np.float32)
    ((_, vector),) = point.vector.items()
    return np.asarray(vector, dtype=np.float32)


def condition(request: SearchRequest, number: int) -> Any:
    """Qdrant looks into lists where we do not, so its comparisons pass more, never less."""
    from qdrant_client import models

    better = request.live[: request.live.index(number)]
    without = [_equal(f"{SUPERSEDED}{other}", True) for other in better]
    word = None if request.filter is None else translate(request.filter, QDRANT)
    if word is None and not without:
        return None
    return models.Filter(must=None if word is None else [word], must_not=without or None)


def _equal(name: str, value: int | str | bool) -> Any:
    from qdrant_client import models

    return models.FieldCondition(key=name, match=models.MatchValue(value=value))


def _between(name: str, **bounds: float) -> Any:
    from qdrant_client import models

    return models.FieldCondition(key=name, range=models.Range(**bounds))


def compare(
    path: Path, operator: str, value: Scalar, *, under: tuple[str, ...] = (PAYLOAD,)
) -> Any:
    """`under`: where the payload of an item is in that of its point."""
    if not all(_PLAIN_KEY.fullmatch(key) for key in path):
        return None
    name = ".".join((*under, *path))
    if isinstance(value, bool | str):
        return _equal(name, value) if operator == "==" else None  # it has no order of texts
    assert value is not None
    if operator == "==":  # 5 is 5.0: a match would tell them apart
        return _between(name, gte=value, lte=value)
    return _between(name, **{_BOUNDS[operator]: value})


def _every(words: Sequence[Any]) -> Any:
    from qdrant_client import models

    return models.Filter(must=list(words))


def _some(words: Sequence[Any]) -> Any:
    from qdrant_client import models

    return models.Filter(should=list(words))


QDRANT: FilterDialect[Any] = FilterDialect(compare=compare, every=_every, some=_some)


# ---- indexes on fields of the payload ------------------------------------------------------------

KINDS = ((bool, "bool"), (int | float, "float"), (object, "keyword"))


def index_field(server: QdrantConnection, collections: Sequence[str], path: Path) -> None:
    """By the kind of the first value that is found: text, number or boolean."""
    from qdrant_client import models

    shown = ".".join(path)
    if server.local or not all(_PLAIN_KEY.fullmatch(key) for key in path):
        raise GalleryError(
            f"{server.shown}: no index on {shown!r}: expected a server, and keys of letters, "
            "digits, _ and -; filters work without one"
        )
    field = f"{PAYLOAD}.{shown}"
    empty = models.IsEmptyCondition(is_empty=models.PayloadField(key=field))
    for name in collections:
        with server.errors():
            points, _ = server.client.scroll(
                name, models.Filter(must_not=[empty]), limit=1, with_payload=[field]
            )
        if points:
            value = points[0].payload[PAYLOAD]
            for key in path:
                value = value[key]
            kind = next(word for known, word in KINDS if isinstance(value, known))
            for other in collections:
                create_index(server, other, field, kind)
            return
    raise GalleryError(f"{server.shown}: no item has {shown!r}; add some first")


def copy_indexes(server: QdrantConnection, collections: Sequence[str], *, to: str) -> None:
    """A new space gets those that the others have."""
    for name in [] if server.local else collections:
        with server.errors():
            schema = server.client.get_collection(name).payload_schema
        for key, one in schema.items():
            if name != to and key.startswith(f"{PAYLOAD}."):
                create_index(server, to, key, str(one.data_type.value))


def create_index(server: QdrantConnection, name: str, field: str, kind: str) -> None:
    with server.errors():
        server.client.create_payload_index(name, field, field_schema=kind, wait=True)
