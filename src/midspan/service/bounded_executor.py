"""Blocking work off the event loop, in a bounded number of threads with a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from midspan.service.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")


class BoundedExecutor:
    """`waiting` calls may queue; the next one is refused with a time to try again."""

    def __init__(self, name: str, *, threads: int, waiting: int) -> None:
        self.name = name
        self.depth = 0  # queued and running; changed on the event loop only
        self._most = threads + waiting
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.shield(self.begin(work, *args, **kwargs))

    def begin(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Started work is finished even if the client leaves."""
        if self.depth >= self._most:
            raise Overloaded(f"{self._most} requests for {self.name} are waiting; try again")
        self.depth += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))
        future.add_done_callback(self._done)
        return future

    def _done(self, future: asyncio.Future[T]) -> None:
        self.depth -= 1
        if not future.cancelled():
            future.exception()  # seen, even if the client left

    def close(self) -> None:
        """Waits for what was begun."""
        self._threads.shutdown(wait=True)
