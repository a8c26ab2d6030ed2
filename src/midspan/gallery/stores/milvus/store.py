"""`milvus://host:19530/shop`: a gallery in Milvus, for more items than one machine holds.

What Milvus cannot promise: after a power cut there is what its message queue and etcd kept; and
once a space has an approximate index, an exact search fetches all of its vectors.
"""

from __future__ import annotations

from midspan.gallery.stores.milvus.server import Server
from midspan.gallery.stores.turns.store import TurnStore


class MilvusStore(TurnStore):
    engine = Server
