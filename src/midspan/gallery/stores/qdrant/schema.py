"""The collections of a gallery: its head, all records, and the vectors of each space."""

from __future__ import annotations

import time
from typing import Any

from midspan.gallery.stores.qdrant.connection import Connection
from midspan.gallery.stores.qdrant.keys import field
from midspan.spaces import Metric, Space

INDEX_SECONDS = 3600.0
LEVELS = 12  # numbers that a key has without further ado: ids of about 50 bytes
DISTANCES: dict[Metric, str] = {"cosine": "Dot", "dot": "Dot", "l2": "Euclid"}  # see points.py


def make_head(server: Connection, name: str) -> None:
    """Somebody else may be doing the same: then there is one."""
    with server.errors():
        if not server.client.collection_exists(name):
            _create(server, name, shards=1)
            _index(server, name, "name", "keyword")


def make_records(server: Connection, name: str) -> None:
    with server.errors():
        _create(server, name)
        for key in ("kind", "key", "row", "mask", "owner"):
            _index(server, name, key, _integers(server, lookup=True))
        _index(server, name, "stamp", _integers(server, range=True))
        _index(server, name, "due", "float")
    index_levels(server, name, range(LEVELS))


def index_levels(server: Connection, name: str, levels: range) -> None:
    with server.errors():
        for level in levels:
            _index(server, name, field(level), _integers(server, lookup=True, range=True))


def indexed_levels(server: Connection, name: str) -> int:
    with server.errors():
        known = server.client.get_collection(name).payload_schema
    return next(level for level in range(len(known) + 1) if field(level) not in known)


def make_vectors(server: Connection, name: str, space: Space) -> None:
    from qdrant_client import models

    layout = server.place.layout
    codes = models.ScalarQuantization(
        scalar=models.ScalarQuantizationConfig(type=models.ScalarType.INT8, always_ram=True)
    )
    with server.errors():
        _create(
            server,
            name,
            vectors_config=models.VectorParams(
                size=space.dim,
                distance=models.Distance(DISTANCES[space.metric]),
                on_disk=layout.on_disk,
                hnsw_config=models.HnswConfigDiff(
                    m=layout.m, ef_construct=layout.ef_construct, on_disk=layout.on_disk
                ),
                quantization_config=codes if layout.int8 else None,
            ),
        )
        _index(server, name, "pk", _integers(server, range=True))
        _index(server, name, "row", _integers(server, lookup=True))


def _create(
    server: Connection, name: str, *, shards: int | None = None, vectors_config: Any = None
) -> None:
    layout = server.place.layout
    server.client.create_collection(
        name,
        vectors_config=vectors_config or {},
        shard_number=shards or layout.shards,
        replication_factor=layout.replicas,
        write_consistency_factor=layout.write_consistency,
        on_disk_payload=True,
    )


def _integers(server: Connection, *, lookup: bool = False, range: bool = False) -> Any:
    from qdrant_client import models

    return models.IntegerIndexParams(
        type=models.IntegerIndexType.INTEGER,
        lookup=lookup,
        range=range,
        on_disk=server.place.layout.on_disk,
    )


def _index(server: Connection, name: str, key: str, kind: Any) -> None:
    if not server.local:  # which has no indexes, and says so each time
        server.client.create_payload_index(name, key, field_schema=kind, wait=True)


def wait_for_index(server: Connection, name: str) -> None:
    """Until the optimisers have nothing left to do."""
    deadline = time.monotonic() + INDEX_SECONDS
    while time.monotonic() < deadline:
        with server.errors():
            status = server.client.get_collection(name).status
        if status != "yellow":
            return
        time.sleep(0.2)
