"""Qdrant in this process. A folder can be opened once only, so its galleries share one client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from midspan.gallery.stores.qdrant.place import MEMORY


@dataclass(slots=True)
class Shared:
    client: Any
    users: int = 0
    guard: threading.RLock = field(default_factory=threading.RLock)  # it knows no threads


_opened: dict[str, Shared] = {}
_guard = threading.Lock()


def open_local(folder: str) -> Shared:
    from qdrant_client import QdrantClient

    with _guard:
        shared = _opened.get(folder)
        if shared is None:
            memory = folder == MEMORY
            client = QdrantClient(
                location=MEMORY if memory else None,
                path=None if memory else folder,
                force_disable_check_same_thread=True,  # there is a guard
            )
            shared = Shared(client)
            _opened[folder] = shared
        shared.users += 1
        return shared


def close_local(folder: str) -> None:
    """What is in memory stays there until the process ends."""
    with _guard:
        shared = _opened[folder]
        shared.users -= 1
        if shared.users == 0 and folder != MEMORY:
            shared.client.close()
            del _opened[folder]


@contextmanager
def alone(shared: Shared | None) -> Iterator[None]:
    if shared is None:
        yield
        return
    with shared.guard:
        yield
