"""What runs on a worker of the cluster: an encoder that was loaded once, and batches of items."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from midspan import __version__
from midspan.errors import MidspanError
from midspan.gallery import Item
from midspan.spaces import Space
from midspan.upgrade.embed import Embed, Embedded, embed_all, read_all

Make = Callable[[], tuple[Space, Embed]]  # called on the worker: loads the encoder


@dataclass(frozen=True, slots=True)
class Parcel:
    """Items as they travel to a worker. `opened`: what it needs of them is there meanwhile."""

    items: tuple[Item, ...]
    opened: Callable[[Sequence[Item]], AbstractContextManager[Sequence[Item]]] | None = None


@dataclass(frozen=True, slots=True)
class Card:
    """Who a worker is."""

    host: str
    node: str
    pid: int
    version: str
    space: Space


@dataclass(frozen=True, slots=True)
class Made:
    embedded: Embedded
    seconds: float


@dataclass(frozen=True, slots=True)
class Refused:
    """An error of ours, as a value: exceptions with arguments of their own do not travel well."""

    kind: type[MidspanError]
    message: str


class Embedder:
    """Two calls may be in it at once: one reads its images while the other one is embedded."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._loaded: tuple[Space, Embed] | None = None

    def load(self, make: Make) -> Card | Refused:
        try:
            self._loaded = make()
        except MidspanError as error:
            return Refused(type(error), str(error))
        return Card(
            host=socket.gethostname(),
            node=_node(),
            pid=os.getpid(),
            version=__version__,
            space=self._loaded[0],
        )

    def work(self, parcel: Parcel) -> Made | Refused:
        try:
            if parcel.opened is None:
                return self._embed(parcel.items)
            with parcel.opened(parcel.items) as items:
                return self._embed(items)
        except MidspanError as error:
            return Refused(type(error), str(error))

    def _embed(self, items: Sequence[Item]) -> Made:
        assert self._loaded is not None, "load comes first"
        space, embed = self._loaded
        began = time.monotonic()
        read = read_all(embed, items)
        seconds = time.monotonic() - began
        with self._turn:  # an encoder is not for several threads
            began = time.monotonic()
            made = embed_all(embed, items, space=space, read=read)
        return Made(made, seconds + time.monotonic() - began)


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
