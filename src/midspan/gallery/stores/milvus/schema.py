"""The collections of a gallery: one for all records, one for the vectors of each space.

Records are an ordered table of keys: items stand by id, work by priority, the trail newest first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from midspan.errors import StoreError
from midspan.gallery.stores.milvus.connection import LOAD_SECONDS, SECONDS, Connection
from midspan.gallery.stores.turns.engine import Beat
from midspan.spaces import Metric, Space

KEY_BYTES = 1200  # "i/" + 512 bytes of an id in hex + a stamp
BODY_BYTES = 65_535  # the most that Milvus takes
FLAT: Mapping[str, Any] = {"index_type": "FLAT", "params": {}}
METRICS: dict[Metric, str] = {"cosine": "COSINE", "l2": "L2", "dot": "IP"}


def make_records(server: Connection, name: str) -> None:
    types = server.types
    make_collection(
        server,
        name,
        fields=[
            ("pk", types.VARCHAR, {"max_length": KEY_BYTES, "is_primary": True}),
            ("kind", types.INT8, {}),
            ("stamp", types.INT64, {}),  # which write made it
            ("key", types.INT64, _partition_key(server)),  # hash of the id, for look-ups
            ("row", types.INT64, {}),  # which revision of an item
            ("mask", types.INT64, {}),  # spaces that the item has a vector in
            ("due", types.DOUBLE, {}),
            ("owner", types.INT64, {}),
            ("body", types.VARCHAR, {"max_length": BODY_BYTES}),
            ("payload", types.JSON, {}),
            ("vector", types.FLOAT_VECTOR, {"dim": 2}),  # Milvus wants one
        ],
        index={"index_type": "FLAT", "metric_type": "L2", "params": {}},
    )


def make_vectors(server: Connection, name: str, space: Space, index: Mapping[str, Any]) -> None:
    types = server.types
    make_collection(
        server,
        name,
        fields=[
            ("pk", types.INT64, {"is_primary": True}),  # stamp
            ("row", types.INT64, _partition_key(server)),
            ("vector", types.FLOAT_VECTOR, {"dim": space.dim}),
        ],
        index={**index, "metric_type": METRICS[space.metric]},
    )


def _partition_key(server: Connection) -> dict[str, bool]:
    """Rows go to the partitions by the hash of this field; who names it looks into few."""
    return {"is_partition_key": True} if server.place.partitions else {}


def make_collection(
    server: Connection, name: str, *, fields: list[tuple[str, Any, Any]], index: dict[str, Any]
) -> None:
    """Loading takes Milvus a second or two; `wait_until_loaded` waits for it."""
    with server.errors():
        client = server.client
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        for field, kind, settings in fields:
            schema.add_field(field, kind, **settings)
        place = server.place
        client.create_collection(
            name,
            schema=schema,
            num_shards=place.shards,
            timeout=SECONDS,
            **({"num_partitions": place.partitions} if place.partitions else {}),
        )
        connection = client._get_connection()
        connection.create_index(name, "vector", index, sync=False, timeout=SECONDS)
        connection.load_collection(name, _async=True, timeout=SECONDS)


def wait_until_loaded(server: Connection, name: str, *, beat: Beat = lambda: None) -> None:
    deadline = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < deadline:
        with server.errors():
            progress = server.client._get_connection().get_loading_progress(name, timeout=SECONDS)
        if progress == 100:
            return
        beat()
        time.sleep(0.02)
    raise StoreError(
        f"{server.shown}: the server did not load {name} in {LOAD_SECONDS:g} s; has it memory left?"
    )


def make_head(server: Connection, name: str) -> None:
    """Nothing is ever in it: its name is what counts."""
    types = server.types
    with server.errors():
        schema = server.client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("pk", types.INT64, is_primary=True)
        schema.add_field("vector", types.FLOAT_VECTOR, dim=2)
        server.client.create_collection(name, schema=schema, num_shards=1, timeout=SECONDS)
