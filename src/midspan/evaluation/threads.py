"""A few threads for the work beside BLAS; NumPy frees the interpreter lock inside its loops.

BLAS has threads of its own. The two never work at the same time here: a product is made, then its
scores are looked through.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

MOST = 16

T = TypeVar("T")
R = TypeVar("R")


def workers() -> int:
    """As many as cores; OMP_NUM_THREADS limits these threads as it limits those of BLAS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    setting = os.environ.get("OMP_NUM_THREADS", "")
    limit = int(setting) if setting.isdigit() and int(setting) > 0 else MOST
    return max(1, min(cores or 1, limit, MOST))


class Threads:
    """with Threads() as threads: threads.spread(work, n, step=64)"""

    def __init__(self) -> None:
        self.size = workers()
        self.pool = ThreadPoolExecutor(self.size) if self.size > 1 else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            if len(waiting) >= 4 * self.size:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
