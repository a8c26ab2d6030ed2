"""Memory that was freed goes back to the system, where the C library can do that."""

from __future__ import annotations

import contextlib
import ctypes
import sys


def give_back() -> None:
    """glibc keeps what an index build has freed: a sixth of all for 100,000 vectors. Takes 1 ms."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
