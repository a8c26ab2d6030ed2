"""The work list of a gallery in memory: what lacks a vector, who holds it, what failed.

Two heaps hold the order, so that a claim costs what it takes, however long the list is. They are
hints only: an entry that is no longer true of its task is dropped when it comes up.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Sequence

GIVEN_UP = math.inf  # when a failed task is due again


@dataclasses.dataclass(slots=True)
class _Work:
    number: int  # place in the order of adding
    priority: float = 0.0
    due: float = 0.0  # claimed or put off until then
    worker: str | None = None
    attempts: int = 0
    reason: str = ""
    when: float = 0.0


class WorkList:
    def __init__(self) -> None:
        self._tasks: dict[str, _Work] = {}
        self._ready: list[tuple[float, int, str]] = []  # (-priority, number, id)
        self._later: list[tuple[float, int, str]] = []  # (due, number, id)

    def __len__(self) -> int:
        return len(self._tasks)

    def failed(self) -> int:
        return sum(task.due == GIVEN_UP for task in self._tasks.values())

    def add(self, id: str, number: int) -> None:
        self._tasks[id] = _Work(number)
        self._is_ready(id)

    def remove(self, id: str) -> None:
        self._tasks.pop(id, None)

    def prioritise(self, pairs: Sequence[tuple[str, float]]) -> None:
        for id, priority in pairs:
            if id in self._tasks:
                self._tasks[id].priority = priority
                self._is_ready(id)

    def claim(self, worker: str, limit: int, seconds: float) -> list[tuple[str, int]]:
        """(id, failed attempts) of the next tasks that nobody holds."""
        now = time.time()
        while self._later and self._later[0][0] <= now:
            _, _, id = heapq.heappop(self._later)
            if id in self._tasks:
                self._is_ready(id)
        claimed: dict[str, int] = {}
        while self._ready and len(claimed) < limit:
            place, number, id = heapq.heappop(self._ready)
            task = self._tasks.get(id)
            if task is None or (place, number) != (-task.priority, task.number):
                continue
            if task.due <= now and id not in claimed:
                claimed[id] = task.attempts
        for id in claimed:
            task = self._tasks[id]
            task.due, task.worker = now + seconds, worker
            self._is_due(id)
        return list(claimed.items())

    def release(self, worker: str) -> int:
        held = [id for id, task in self._tasks.items() if task.worker == worker]
        for id in held:
            self._tasks[id].due, self._tasks[id].worker = 0.0, None
            self._is_ready(id)
        return len(held)

    def fail(self, id: str, reason: str, retry_after: float | None) -> None:
        task, now = self._tasks.get(id), time.time()
        if task is None:
            return
        task.due = GIVEN_UP if retry_after is None else now + retry_after
        task.worker, task.reason, task.when = None, reason, now
        task.attempts += 1
        if retry_after is not None:
            self._is_due(id)

    def failures(self, after: str, limit: int) -> list[tuple[str, str, int, float]]:
        """(id, reason, attempts, when) of what was given up, by id."""
        failed = sorted(
            id for id, task in self._tasks.items() if task.due == GIVEN_UP and id > after
        )
        tasks = [(id, self._tasks[id]) for id in failed[:limit]]
        return [(id, task.reason, task.attempts, task.when) for id, task in tasks]

    def retry(self) -> int:
        failed = [id for id, task in self._tasks.items() if task.due == GIVEN_UP]
        for id in failed:
            self._tasks[id].due, self._tasks[id].attempts = 0.0, 0
            self._is_ready(id)
        return len(failed)

    def _is_ready(self, id: str) -> None:
        task = self._tasks[id]
        heapq.heappush(self._ready, (-task.priority, task.number, id))

    def _is_due(self, id: str) -> None:
        task = self._tasks[id]
        heapq.heappush(self._later, (task.due, task.number, id))
