"""A few threads, each of which makes its own scores and counts them.

NumPy frees the interpreter lock inside its loops and products. While these threads work, BLAS is
held to one thread for each of them: its own threads share one product at a time, and between two
products they spin, which takes the processors from whoever looks at the scores.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

MOST = 16
WORTH = 2**28  # multiplications below which one thread is done before others have started

T = TypeVar("T")
R = TypeVar("R")


def workers() -> int:
    """As many as cores; OMP_NUM_THREADS limits these threads as it limits those of BLAS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    setting = os.environ.get("OMP_NUM_THREADS", "")
    limit = int(setting) if setting.isdigit() and int(setting) > 0 else MOST
    return max(1, min(cores or 1, limit, MOST))


class Threads:
    """with Threads() as threads: threads.spread(work, n, step=64)

    multiplications: the size of the work; small work stays in the calling thread.
    """

    def __init__(self, *, multiplications: float = WORTH) -> None:
        self.size = workers() if multiplications >= WORTH else 1
        self.pool: ThreadPoolExecutor | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self.size > 1:
            self.pool = ThreadPoolExecutor(self.size)
            self._open.enter_context(_single_blas)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._open:
            if self.pool is not None:
                self.pool.shutdown(cancel_futures=True)

    def spread(self, work: Callable[[int, int], None], n: int, *, step: int) -> None:
        """work(start, stop) over range(n), in pieces of `step`."""
        pieces = [(start, min(start + step, n)) for start in range(0, n, step)]
        for _ in self.map(lambda piece: work(*piece), pieces):
            pass

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Results in order; of a long iterable only a few items are taken ahead."""
        if self.pool is None:
            yield from map(work, items)
            return
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(self.pool.submit(work, item))
            if len(waiting) >= 2 * self.size:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class Buffers:
    """Memory that each thread keeps for its next piece of work, by name."""

    def __init__(self) -> None:
        self._own = threading.local()

    def take(self, name: str, size: int, *, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """(size,) of whatever was in it before."""
        held: npt.NDArray[Any] | None = getattr(self._own, name, None)
        if held is None or len(held) < size:
            held = np.empty(size, dtype=dtype)
            setattr(self._own, name, held)
        return held[:size]


class _SingleBlas:
    """One thread for each product, as long as anyone is inside; the setting is the process's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = _blas().limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


_single_blas = _SingleBlas()
