"""A pool of processes that decode what clients send; one that dies or hangs is replaced."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import time
from typing import Any, Protocol

import numpy as np

from midspan.data.decode import Channels, Fit, Pixels
from midspan.errors import ImageError
from midspan.service.decode_worker import receive, send
from midspan.service.errors import Overloaded, TooLarge
from midspan.service.settings import Limits

START_SECONDS = 60.0  # until a new worker takes its first image, on a busy machine
LARGEST_ANSWER = 2**28


class Box(Protocol):
    """Preprocessing of an encoder: the pixels it wants."""

    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def channels(self) -> Channels: ...
    @property
    def fit(self) -> Fit: ...


class DecodePool:
    """Blocking; use it from threads. Workers start when first needed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(limits.decode_workers):
            self._idle.put(None)
        self._closed = False
        self.replaced = 0  # workers that died or were ended

    def fit(self, data: bytes, box: Box) -> Pixels:
        """(H, W, C) uint8, or ImageError."""
        head = {
            "do": "fit",
            "height": box.height,
            "width": box.width,
            "channels": box.channels,
            "fit": box.fit,
        }
        answer, body = self._ask(head, data)
        return np.frombuffer(body, dtype=np.uint8).reshape(answer["shape"])

    def thumbnail(self, data: bytes, *, size: int) -> bytes:
        """PNG or JPEG, at most `size` pixels wide and high."""
        return bytes(self._ask({"do": "thumbnail", "size": size}, data)[1])

    def _ask(self, head: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytearray]:
        limits = self._limits
        if len(data) > limits.image_bytes:
            raise TooLarge(
                f"the image has {len(data):,} bytes; at most {limits.image_bytes:,} are taken"
            )
        head = {**head, "pixels": limits.pixels, "frames": limits.frames}
        worker = self._idle.get()
        try:
            if self._closed:
                raise Overloaded("the service is closing")
            if worker is not None and not worker.alive:
                worker.end()
                worker = None
            worker = worker or _Worker(limits)
            try:
                answer, body = worker.ask(head, data, seconds=limits.decode_seconds)
            except (OSError, EOFError, ValueError) as error:
                worker.end()
                worker = None
                self.replaced += 1
                slow = isinstance(error, TimeoutError)
                raise ImageError(
                    f"image: took more than {limits.decode_seconds:g} s to decode"
                    if slow
                    else "image: took more memory or time than one image may"
                ) from error
        finally:
            self._idle.put(worker)
        if answer.get("status") != "ok":
            raise ImageError(str(answer.get("reason")))
        return answer, body

    def close(self) -> None:
        self._closed = True
        for _ in range(self._limits.decode_workers):
            worker = self._idle.get()
            if worker is not None:
                worker.end()
        for _ in range(self._limits.decode_workers):
            self._idle.put(None)


class _Worker:
    def __init__(self, limits: Limits) -> None:
        mine, theirs = socket.socketpair()
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("MIDSPAN_")  # tokens
        }
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        arguments = [theirs.fileno(), limits.decode_memory, round(limits.decode_seconds) + 1]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "midspan.service.decode_worker", *map(str, arguments)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the service, which ends it in good order
        )
        theirs.close()
        self._wire = mine
        self._fresh = True

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, head: dict[str, Any], data: bytes, *, seconds: float
    ) -> tuple[dict[str, Any], bytearray]:
        """TimeoutError after so many seconds; a new worker has more, to begin with."""
        allowed = START_SECONDS + seconds if self._fresh else seconds
        until = time.monotonic() + allowed
        self._wire.settimeout(allowed)
        send(self._wire, head, data)
        answer = receive(self._wire, most=LARGEST_ANSWER, until=until)
        self._fresh = False
        return answer

    def end(self) -> None:
        self._wire.close()
        self._process.kill()
        self._process.wait()
