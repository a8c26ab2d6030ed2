"""Many readers or one writer; a waiting writer goes before new readers."""

from __future__ import annotations

import threading
from types import TracebackType


class SharedLock:
    """`with lock.shared:` for searches, `with lock.exclusive:` for the moment of a change."""

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.Lock())
        self._readers = 0
        self._waiting = 0
        self._writing = False
        self.shared = _Shared(self)
        self.exclusive = _Exclusive(self)

    def begin_shared(self) -> None:
        with self._condition:
            while self._writing or self._waiting:
                self._condition.wait()
            self._readers += 1

    def end_shared(self) -> None:
        with self._condition:
            self._readers -= 1
            if not self._readers:
                self._condition.notify_all()

    def begin_exclusive(self) -> None:
        with self._condition:
            self._waiting += 1
            while self._writing or self._readers:
                self._condition.wait()
            self._waiting -= 1
            self._writing = True

    def end_exclusive(self) -> None:
        with self._condition:
            self._writing = False
            self._condition.notify_all()


class _Shared:
    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.begin_shared()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.end_shared()


class _Exclusive:
    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.begin_exclusive()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.end_exclusive()
