"""Rows as points of Qdrant, and back."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from midspan.gallery.scores import prepare
from midspan.gallery.stores.qdrant.keys import field, numbers, point_id
from midspan.gallery.stores.turns.engine import Row
from midspan.spaces import FloatArray, Metric

if TYPE_CHECKING:
    from qdrant_client import models

UNIT = 2e-6  # by which a length may differ from one; the scores are made here anyway
RAW = "raw"
ROWS = 1000  # in one request
BYTES = 8_000_000  # in one request; Qdrant takes 32 MB


def record_points(rows: Iterable[Row]) -> Iterator[tuple[models.PointStruct, int]]:
    """(point, its size)."""
    from qdrant_client import models

    for row in rows:
        size = 400 + len(row["body"]) + row.pop("weight")
        levels = {field(level): number for level, number in enumerate(numbers(row["pk"]))}
        point = models.PointStruct(id=point_id(row["pk"]), vector={}, payload={**row, **levels})
        yield point, size


def vector_points(rows: Iterable[Row], metric: Metric) -> Iterator[tuple[models.PointStruct, int]]:
    """Qdrant would change vectors for cosine: so it gets a unit vector, and compares by product.

    One of another length is kept as it came beside it: vectors come back bit for bit.
    """
    from qdrant_client import models

    for row in rows:
        vector = np.asarray(row["vector"], dtype=np.float32)
        payload: dict[str, Any] = {"pk": row["pk"], "row": row["row"]}
        if metric == "cosine" and abs(float(np.linalg.norm(vector.astype(float))) - 1) > UNIT:
            payload[RAW] = base64.b64encode(vector.tobytes()).decode("ascii")
            vector = prepare(vector[None], metric=metric)[0]
        size = 200 + 20 * len(vector)  # as text
        yield models.PointStruct(id=row["pk"], vector=vector.tolist(), payload=payload), size


def wanted(fields: Sequence[str]) -> dict[str, Any]:
    """What a request must ask for to get these fields."""
    vectors = "vector" in fields
    names = [name for name in fields if name != "vector"]
    return {
        "with_payload": [*names, RAW] if vectors else names,
        "with_vectors": vectors,
    }


def as_row(point: Any, fields: Sequence[str]) -> Row:
    payload: Mapping[str, Any] = point.payload or {}
    row = {name: payload[name] for name in fields if name != "vector"}
    if "vector" in fields:
        row["vector"] = as_vector(point)
    return row


def as_vector(point: Any) -> FloatArray:
    if RAW in point.payload:
        return np.frombuffer(base64.b64decode(point.payload[RAW]), dtype=np.float32)
    return np.asarray(point.vector, dtype=np.float32)
