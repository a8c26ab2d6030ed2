"""`qdrant://host:6333/shop`: a gallery in Qdrant, for more items than one machine holds.

`qdrant+local:///folder/shop` is Qdrant's own local mode: one process, every vector compared.
"""

from __future__ import annotations

from midspan.gallery.stores.qdrant.server import Server
from midspan.gallery.stores.turns.store import TurnStore


class QdrantStore(TurnStore):
    engine = Server
