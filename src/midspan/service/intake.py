"""Bodies of requests on their way in: a slow client costs a slot and some disk, not memory.

A body of more than 64 KiB is received whole before a handler sees it: in memory while there is
room, else in a file without a name. Then it waits until the bodies that are worked on leave room.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import IO

from starlette.types import Message, Receive

from midspan.service.errors import Overloaded
from midspan.service.settings import Limits

INLINE = 65536  # bytes of a body that are handed on as they come
IN_MEMORY = 2**18  # bytes of one body that may wait in memory for the rest
PIECE = 2**18  # bytes that are read back at a time


class Intake:
    """One for a server; used on the event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.waiting = 0  # bodies that are coming in
        self.memory = 0  # bytes of them in memory
        self.disk = 0  # and on disk
        self.working = 0  # bytes of bodies that are worked on
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def receive(self, receive: Receive) -> Body:
        """The whole body. Overloaded if there is no room for another."""
        if self.waiting >= self._limits.uploads:
            raise Overloaded(f"{self.waiting} uploads are under way; try again", retry_after=5)
        self.waiting += 1
        body = Body(self)
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    body.left = True
                    return body
                body.add(message.get("body", b""))
                if not message.get("more_body", False):
                    return body
                del message  # else the last part stays in memory for as long as the next takes
        except BaseException:
            body.close()
            raise
        finally:
            self.waiting -= 1

    @asynccontextmanager
    async def room_for(self, size: int) -> AsyncIterator[None]:
        """Until the bodies that are worked on leave so much of `body_memory`; in order."""
        size = min(size, self._limits.body_memory)
        if self._queue or self.working + size > self._limits.body_memory:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append((size, turn))
            try:
                await turn
            except BaseException:
                if not turn.cancelled() and turn.done():
                    self._leave(size)
                else:
                    self._queue = deque(one for one in self._queue if one[1] is not turn)
                raise
        else:
            self.working += size
        try:
            yield
        finally:
            self._leave(size)

    def _leave(self, size: int) -> None:
        self.working -= size
        while self._queue and self.working + self._queue[0][0] <= self._limits.body_memory:
            size, turn = self._queue.popleft()
            if not turn.done():
                self.working += size
                turn.set_result(None)

    def has_memory(self, more: int) -> bool:
        return self.memory + more <= self._limits.waiting_memory

    def check_disk(self, more: int) -> None:
        if self.disk + more > self._limits.waiting_disk:
            raise Overloaded("uploads under way fill the disk that they may use", retry_after=5)


class Body:
    """What came of one body so far."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._parts: list[bytes] = []
        self._in_memory = 0
        self._file: IO[bytes] | None = None
        self.size = 0
        self.left = False  # the client went away before the end

    def add(self, part: bytes) -> None:
        more = len(part)
        if self._file is None and (
            self._in_memory + more > IN_MEMORY or not self._intake.has_memory(more)
        ):
            self._intake.check_disk(self._in_memory)
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  closed by close()
            for one in self._parts:
                self._file.write(one)
            self._intake.disk += self._in_memory
            self._forget()
        if self._file is None:
            self._parts.append(part)
            self._in_memory += more
            self._intake.memory += more
        else:
            self._intake.check_disk(more)
            self._file.write(part)
            self._intake.disk += more
        self.size += more

    def _forget(self) -> None:
        self._intake.memory -= self._in_memory
        self._parts, self._in_memory = [], 0

    def close(self) -> None:
        self._forget()
        if self._file is not None:
            self._intake.disk -= self.size
            self._file.close()
            self._file = None

    def replay(self, after: Receive) -> Receive:
        """As if it came now; then whatever comes after it."""
        parts = self._pieces()
        ended = False

        async def receive() -> Message:
            nonlocal ended
            if ended:
                return await after()
            part = next(parts, None)
            if part is None:
                ended = True
                if self.left:
                    return {"type": "http.disconnect"}
            return {"type": "http.request", "body": part or b"", "more_body": part is not None}

        return receive

    def _pieces(self) -> Iterator[bytes]:
        if self._file is None:
            yield from self._parts
            return
        self._file.seek(0)
        while piece := self._file.read(PIECE):
            yield piece
