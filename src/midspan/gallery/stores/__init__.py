"""Engines below a gallery. One location string selects the store:

shop.midspan                                    a file
postgresql://user@host/database?table=shop      PostgreSQL with pgvector
milvus://host:19530/shop                        Milvus
qdrant://host:6333/shop                         Qdrant
qdrant+local:///folder/shop                     Qdrant's local mode: one process
memory:                                         nothing is kept
"""

from __future__ import annotations

from midspan.config import look_up
from midspan.errors import ConfigError, GalleryError
from midspan.gallery.quantise import Quantise, check_quantise, refusal
from midspan.gallery.records import Entry
from midspan.gallery.stores.base import Store
from midspan.spaces import Space

STORES = {
    "memory": "midspan.gallery.stores.memory:MemoryStore",
    "sqlite": "midspan.gallery.stores.sqlite.store:SqliteStore",
    "postgresql": "midspan.gallery.stores.pgvector.store:PgvectorStore",
    "postgres": "midspan.gallery.stores.pgvector.store:PgvectorStore",
    "milvus": "midspan.gallery.stores.milvus.store:MilvusStore",
    "qdrant": "midspan.gallery.stores.qdrant.store:QdrantStore",
    "qdrant+local": "midspan.gallery.stores.qdrant.store:QdrantStore",
}

__all__ = ["STORES", "Store", "check_place", "create_store", "open_store", "scheme_of"]


def scheme_of(location: str) -> str:
    """The key in STORES; what is no URL is a file."""
    if not isinstance(location, str) or not location.strip() or "\0" in location:
        raise GalleryError(f"{location!r} is no place for a gallery; give a file: shop.midspan")
    if location.startswith("memory:"):
        return "memory"
    scheme, separator, _ = location.partition("://")
    return scheme if separator else "sqlite"


def open_store(location: str) -> Store:
    return _store_class(location).open(location)


def create_store(location: str, space: Space, *, entry: Entry, quantise: str = "none") -> Store:
    """`quantise`: how small a file's vectors are held in memory, see gallery/quantise.py."""
    chosen = check_place(location, quantise)
    if chosen == "none":
        return _store_class(location).create(location, space, entry=entry)
    from midspan.gallery.stores.sqlite.store import SqliteStore

    return SqliteStore.create(location, space, entry=entry, quantise=chosen)


def check_place(location: str, quantise: str) -> Quantise:
    """Refuse what is no way to hold vectors, or not this engine's."""
    chosen = check_quantise(quantise)
    if chosen != "none" and scheme_of(location) != "sqlite":
        raise refusal(scheme_of(location), chosen)
    return chosen


def _store_class(location: str) -> type[Store]:
    try:
        found: type[Store] = look_up(STORES, scheme_of(location), what="store")
    except ConfigError as error:
        raise GalleryError(f"{location}: {error}") from error
    return found
