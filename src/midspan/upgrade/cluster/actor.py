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
from midspan.errors import ClusterError, MidspanError
from midspan.gallery import Item, Task
from midspan.spaces import Space
from midspan.upgrade.embed import Embed, Embedded, embed_all, read_all

Make = Callable[[], tuple[Space, Embed]]  # called on the worker: loads the encoder


@dataclass(frozen=True, slots=True)
class Batch:
    """Items as they travel to a worker. `opened`: what it needs of them is there meanwhile."""

    items: tuple[Item, ...]
    opened: Callable[[Sequence[Item]], AbstractContextManager[Sequence[Item]]] | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Who a worker is."""

    host: str
    node: str
    pid: int
    version: str
    space: Space


@dataclass(frozen=True, slots=True)
class EmbeddedBatch:
    embedded: Embedded
    seconds: float


@dataclass(frozen=True, slots=True)
class WorkerError:
    """An error of ours, as a value: exceptions with arguments of their own do not travel well."""

    kind: type[MidspanError]
    message: str


class Embedder:
    """Two calls may be in it at once: one reads its images while the other one is embedded."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._loaded: tuple[Space, Embed] | None = None

    def load(self, make: Make) -> WorkerInfo | WorkerError:
        try:
            self._loaded = make()
        except MidspanError as error:
            return WorkerError(type(error), str(error))
        return WorkerInfo(
            host=socket.gethostname(),
            node=_node(),
            pid=os.getpid(),
            version=__version__,
            space=self._loaded[0],
        )

    def work(self, parcel: Batch) -> EmbeddedBatch | WorkerError:
        try:
            if parcel.opened is None:
                return self._embed(parcel.items)
            with parcel.opened(parcel.items) as items:
                return self._embed(items)
        except MidspanError as error:
            return WorkerError(type(error), str(error))

    def _embed(self, items: Sequence[Item]) -> EmbeddedBatch:
        assert self._loaded is not None, "load comes first"
        space, embed = self._loaded
        began = time.monotonic()
        read = read_all(embed, items)
        seconds = time.monotonic() - began
        with self._turn:  # an encoder is not for several threads
            began = time.monotonic()
            embedded = embed_all(embed, items, space=space, read=read)
        return EmbeddedBatch(embedded, seconds + time.monotonic() - began)


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


# ---- what comes back from a cluster: batches that were embedded, and workers that were lost ------

DEADLY = "every worker that embedded it died (out of memory, or a crash while decoding)"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch that came back. Without `embedded`: its one item killed every worker it met."""

    tasks: Sequence[Task]
    embedded: Embedded | None
    seconds: float
    host: str


@dataclass(frozen=True, slots=True)
class LostWorker:
    """A worker that is gone, and how many items were sent again."""

    host: str
    node: str
    why: str
    items: int

    def __str__(self) -> str:
        where = self.host or "the cluster"
        return f"a worker on {where} is lost ({self.why}); {self.items} items are sent again"


def check_sight(came: BatchResult, seen_here: Callable[[Item], bool]) -> None:
    """A worker that can read none of its images is refused if this machine can read them.

    Otherwise a storage that is not mounted on a node would send a whole gallery to the failures.
    """
    if came.embedded is None or len(came.embedded.failed) < len(came.tasks):
        return
    for item in (task.item for task in came.tasks):
        if seen_here(item):
            raise ClusterError(
                f"the worker on {came.host} can read none of {len(came.tasks)} images, but this "
                f"machine can, first {item.uri}: mount their storage at the same place on every "
                "node, or send the images along (`pack`)"
            )
