"""The work list of a gallery in memory: what lacks a vector, who holds it, what failed."""

from __future__ import annotations

import dataclasses
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

    def __len__(self) -> int:
        return len(self._tasks)

    def failed(self) -> int:
        return sum(task.due == GIVEN_UP for task in self._tasks.values())

    def add(self, id: str, number: int) -> None:
        self._tasks[id] = _Work(number)

    def remove(self, id: str) -> None:
        self._tasks.pop(id, None)

    def prioritise(self, pairs: Sequence[tuple[str, float]]) -> None:
        for id, priority in pairs:
            if id in self._tasks:
                self._tasks[id].priority = priority

    def claim(self, worker: str, limit: int, seconds: float) -> list[tuple[str, int]]:
        """(id, failed attempts) of the next tasks that nobody holds."""
        now = time.time()
        due = [(id, task) for id, task in self._tasks.items() if task.due <= now]
        due.sort(key=lambda pair: (-pair[1].priority, pair[1].number))
        for _, task in due[:limit]:
            task.due, task.worker = now + seconds, worker
        return [(id, task.attempts) for id, task in due[:limit]]

    def release(self, worker: str) -> int:
        held = [task for task in self._tasks.values() if task.worker == worker]
        for task in held:
            task.due, task.worker = 0.0, None
        return len(held)

    def fail(self, id: str, reason: str, retry_after: float | None) -> None:
        task, now = self._tasks.get(id), time.time()
        if task is None:
            return
        task.due = GIVEN_UP if retry_after is None else now + retry_after
        task.worker, task.reason, task.when = None, reason, now
        task.attempts += 1

    def failures(self, after: str, limit: int) -> list[tuple[str, str, int, float]]:
        """(id, reason, attempts, when) of what was given up, by id."""
        failed = sorted(
            id for id, task in self._tasks.items() if task.due == GIVEN_UP and id > after
        )
        tasks = [(id, self._tasks[id]) for id in failed[:limit]]
        return [(id, task.reason, task.attempts, task.when) for id, task in tasks]

    def retry(self) -> int:
        failed = [task for task in self._tasks.values() if task.due == GIVEN_UP]
        for task in failed:
            task.due, task.attempts = 0.0, 0
        return len(failed)
