"""Work of concurrent requests done together: images through an encoder, vectors through a search.

A thread takes what waits, up to `size` pieces of the same key, and runs them as one. The first
piece of a batch waits at most `wait` seconds for others; while a batch runs, the next collects.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from midspan.service.errors import Overloaded

In = TypeVar("In")
Out = TypeVar("Out")


class _Piece(NamedTuple):
    key: Hashable
    value: Any
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class Batcher(Generic[In, Out]):
    def __init__(
        self,
        name: str,
        run: Callable[[Any, list[In]], Sequence[Out]],
        *,
        size: int,
        wait: float,
        waiting: int,
        threads: int = 1,
    ) -> None:
        self.name = name
        self.batches = 0
        self.pieces = 0
        self._run = run
        self._size, self._wait, self._most = size, wait, waiting
        self._queue: deque[_Piece] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def depth(self) -> int:
        return len(self._queue)

    async def submit(self, key: Hashable, value: In) -> Out:
        """The result of this piece, whichever batch it came into."""
        loop = asyncio.get_running_loop()
        piece = _Piece(key, value, loop.create_future(), loop)
        with self._ready:
            if self._closed or len(self._queue) >= self._most:
                raise Overloaded(f"{self._most} requests for {self.name} are waiting; try again")
            self._queue.append(piece)
            self._ready.notify()
        result: Out = await piece.future
        return result

    def close(self) -> None:
        """What waits is still done; nothing more is taken."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            outcomes = self._outcomes(batch)
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Piece, Any]]] = {}
            for piece, outcome in zip(batch, outcomes, strict=True):
                by_loop.setdefault(piece.loop, []).append((piece, outcome))
            for loop, pairs in by_loop.items():
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_deliver, pairs)

    def _next(self) -> list[_Piece] | None:
        with self._ready:
            while not self._queue:
                if self._closed:
                    return None
                self._ready.wait()
            key, until = self._queue[0].key, time.monotonic() + self._wait
            while self._wait and len(self._queue) < self._size and not self._closed:
                if (left := until - time.monotonic()) <= 0:
                    break
                self._ready.wait(left)
            batch: list[_Piece] = []
            others: list[_Piece] = []
            while self._queue and len(batch) < self._size:
                piece = self._queue.popleft()
                (batch if piece.key == key else others).append(piece)
            self._queue.extendleft(reversed(others))
            if self._queue:
                self._ready.notify()
            self.batches += bool(batch)  # another thread may have taken what this one waited for
            self.pieces += len(batch)
            return batch

    def _outcomes(self, batch: list[_Piece]) -> list[Any]:
        """A result or an error each; one that spoils the batch is found by running each alone."""
        if not batch:
            return []
        try:
            return list(self._run(batch[0].key, [piece.value for piece in batch]))
        except Exception as error:
            if len(batch) == 1:
                return [_Failed(error)]
        return [outcome for piece in batch for outcome in self._outcomes([piece])]


class _Failed(NamedTuple):
    error: Exception


def _deliver(pairs: list[tuple[_Piece, Any]]) -> None:
    for piece, outcome in pairs:
        if piece.future.done():  # the client left
            continue
        if isinstance(outcome, _Failed):
            piece.future.set_exception(outcome.error)
        else:
            piece.future.set_result(outcome)
