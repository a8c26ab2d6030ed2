"""Where vectors live and are searched. The scheme of a location selects the engine."""

from __future__ import annotations

from typing import Any

from midspan.config import look_up

ENGINES = {
    "memory": "midspan.gallery.engines.memory:MemoryEngine",
    "embedded": "midspan.gallery.engines.embedded.engine:EmbeddedEngine",
    "postgresql": "midspan.gallery.engines.pgvector:PgvectorEngine",
    "qdrant": "midspan.gallery.engines.qdrant:QdrantEngine",
    "qdrant+local": "midspan.gallery.engines.qdrant:QdrantEngine",
    "milvus": "midspan.gallery.engines.milvus:MilvusEngine",
    "milvus+lite": "midspan.gallery.engines.milvus:MilvusEngine",
}


def engine_class(scheme: str) -> Any:
    """The class with `open(location, catalogue)` and `create(location, catalogue)`."""
    return look_up(ENGINES, scheme, what="engine")
