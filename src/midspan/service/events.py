"""Server-sent events: what the gallery says changed, for everyone who listens.

One look at the gallery's change counter serves all; numbers are read only when it moved. So what
other processes do (a backfill on the command line) is sent as well. What is done here is sent at
once: a phase may be over before the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

from pydantic_core import to_json

from midspan.errors import MidspanError
from midspan.service import logs
from midspan.service.errors import Overloaded
from midspan.service.search_service import SearchService
from midspan.wire import Job

LOOK = 0.5  # seconds
HEARTBEAT = 15.0
BEHIND = 32  # events that a slow listener may be behind; then it misses some


class Hub:
    def __init__(
        self,
        service: SearchService,
        snapshot: Callable[[], dict[str, dict[str, Any]]],
        jobs: Callable[[], list[Job]],
    ) -> None:
        """snapshot: {"gallery": {…}, "upgrade": {…}} as of now; called in a thread.

        jobs: those that run here; no work to ask.
        """
        self._service, self._snapshot, self._jobs = service, snapshot, jobs
        self._listeners: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._wake: asyncio.Event | None = None
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

    def nudge(self) -> None:
        """From any thread: something was done here, so look now."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._look_now)

    def _look_now(self) -> None:
        if self._wake is not None:
            self._wake.set()

    async def stream(self) -> AsyncIterator[bytes]:
        listener: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=BEHIND)
        self._loop = asyncio.get_running_loop()  # first: a signal may come at any moment
        self._listeners.add(listener)
        try:
            now = await self._service.reading.run(self._snapshot)
            yield b"retry: 2000\n\n"
            now["jobs"] = {"jobs": [asdict(job) for job in self._jobs()]}
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
        if self._closing or len(self._listeners) >= self._service.limits.streams:
            raise Overloaded("too many event streams are open; ask /v1/upgrade instead")

    async def _watch(self) -> None:
        """While somebody listens. Counts less often where counting takes long."""
        seen: int | None = None
        told: dict[str, bytes] = {}
        self._wake = wake = asyncio.Event()
        rest_until = 0.0
        while self._listeners and not self._closing:
            look = wake.is_set() or time.monotonic() >= rest_until
            wake.clear()
            try:
                if look and seen != (
                    sequence := await self._service.reading.run(self._service.gallery.sequence)
                ):
                    seen, started = sequence, time.monotonic()
                    for name, content in (await self._service.reading.run(self._snapshot)).items():
                        message = _event(name, content)
                        if told.get(name) != message:
                            told[name] = message
                            self._tell(message)
                    rest_until = time.monotonic() + 10 * (time.monotonic() - started)
                jobs = _event("jobs", {"jobs": [asdict(job) for job in self._jobs()]})
                if told.setdefault("jobs", jobs) != jobs:
                    told["jobs"] = jobs
                    self._tell(jobs)
            except (Overloaded, MidspanError) as error:
                logs.event("event stream", level=30, error=str(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), LOOK)

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
