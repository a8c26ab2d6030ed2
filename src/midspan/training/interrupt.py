"""Ctrl-C and SIGTERM as a request: the loop finishes its step, saves, and stops.

A second one stops immediately. SIGTERM is what torchrun, schedulers and `kill` send.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields requested(): whether one of the two has arrived."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread gets signals
        return
    requested = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
