"""Server-sent events: what the gallery says changed, told to everyone who listens.

One look at the gallery's change counter serves all; numbers are read only when it moved. So what
other processes do (a backfill on the command line) is told as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic_core import to_json

from midspan.errors import MidspanError
from midspan.service import logs
from midspan.service.core import Core
from midspan.service.errors import Overloaded

LOOK = 0.5  # seconds
HEARTBEAT = 15.0
BEHIND = 32  # events that a slow listener may be behind; then it misses some


class Hub:
    def __init__(self, core: Core, snapshot: Callable[[], dict[str, dict[str, Any]]]) -> None:
        """snapshot: {"gallery": {…}, "upgrade": {…}} as of now; called in a thread."""
        self._core, self._snapshot = core, snapshot
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def close(self) -> None:
        """Streams end, so that the server can."""
        self._closing = True
        for listener in self._listeners:
            _put(listener, None)
        if self._task is not None:
            self._task.cancel()

    def close_soon(self) -> None:
        """From a signal handler: on the loop's next turn, if it has begun to turn."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    async def stream(self) -> AsyncIterator[bytes]:
        listener: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=BEHIND)
        self._loop = asyncio.get_running_loop()  # first: a signal may come at any moment
        self._listeners.add(listener)
        try:
            now = await self._core.reading.run(self._snapshot)
            yield b"retry: 2000\n\n"
            for name, content in now.items():
                yield _event(name, content)
            if self._task is None or self._task.done():
                self._task = self._loop.create_task(self._watch())
            while not self._closing:
                try:
                    message = await asyncio.wait_for(listener.get(), HEARTBEAT)
                except TimeoutError:
                    message = _event("heartbeat", {"at": time.time()})
                if message is None:
                    return
                yield message
        finally:
            self._listeners.discard(listener)

    def check_room(self) -> None:
        if self._closing or len(self._listeners) >= self._core.settings.limits.streams:
            raise Overloaded("too many event streams are open; ask /v1/upgrade instead")

    async def _watch(self) -> None:
        """While somebody listens. Rests longer where counting takes long."""
        seen: int | None = None
        told: dict[str, bytes] = {}
        while self._listeners and not self._closing:
            took = 0.0
            try:
                sequence = await self._core.reading.run(self._core.gallery.store.sequence)
                if sequence != seen:
                    seen, started = sequence, time.monotonic()
                    for name, content in (await self._core.reading.run(self._snapshot)).items():
                        message = _event(name, content)
                        if told.get(name) != message:
                            told[name] = message
                            self._tell(message)
                    took = time.monotonic() - started
            except (Overloaded, MidspanError) as error:
                logs.event("event stream", level=30, error=str(error))
            await asyncio.sleep(max(LOOK, 10 * took))

    def _tell(self, message: bytes) -> None:
        for listener in self._listeners:
            _put(listener, message)


def _put(listener: asyncio.Queue[bytes | None], message: bytes | None) -> None:
    while True:
        try:
            listener.put_nowait(message)
            return
        except asyncio.QueueFull:
            listener.get_nowait()  # the oldest: what is newer says more


def _event(name: str, content: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json(content, inf_nan_mode="null"))
