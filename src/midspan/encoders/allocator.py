"""Keep freed memory in the process, so that torch on a CPU does not fault each activation in again.

glibc gives blocks above a threshold (32 MiB at most) back to the kernel as soon as they are freed.
The activations of a convolutional network are larger, so each layer of each batch was zeroed and
mapped page by page: of the processor time of EfficientNet-lite0 on 64 images more than half
(`benchmarks/embedding.py --part allocator`). ONNX Runtime and OpenVINO have their own arenas.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

# <malloc.h>
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
MOST = 2**31 - 1  # mallopt takes an int

# Set by the user: these settings take precedence.
CHOSEN = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory, once in a process; False where that cannot be asked.

    Up to 2 GiB at the top of the heap stay with the process; blocks are taken from the heap
    however large they are.
    """
    if sys.platform != "linux" or any(name in os.environ for name in CHOSEN):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):  # musl
        return False
    return bool(library.mallopt(M_MMAP_MAX, 0)) and bool(library.mallopt(M_TRIM_THRESHOLD, MOST))
