"""While a batch is embedded, the next one is read and the one before is written.

The encoder stays in the caller's thread; one thread beside it claims and reads, another writes. A
batch that was taken ahead and is not wanted any more (a pause, an error) was only leased: the
worker gives it back with the rest of its leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from midspan.gallery import Task
from midspan.upgrade.embed import Embedded
from midspan.upgrade.worker import Worker


@dataclass(frozen=True, slots=True)
class Batch:
    tasks: Sequence[Task]
    read: Any | None  # what the encoder needs of them, where it reads in a step of its own


class Ahead:
    """At most one batch is read ahead and one is being written. Not for several callers at once."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="backfill")
        self._coming: Future[Batch] | None = None
        self._writing: Future[None] | None = None
        self._sent = 0  # items of the batch that is being written

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Both threads have ended after this, so that no lease is taken after the last release."""
        self._pool.shutdown(wait=True)
        if error is None:
            self.flush()

    def begin(self, count: int) -> None:
        """Claim and read up to so many items."""
        assert self._coming is None
        self._coming = self._pool.submit(self._claim_and_read, count)

    def take(self) -> Batch | None:
        """The batch that was begun; None if none was, or nothing was due."""
        if self._coming is None:
            return None
        coming, self._coming = self._coming, None
        batch = coming.result()
        return batch if batch.tasks else None

    def write(self, batch: Batch, made: Embedded) -> None:
        """Returns when the batch before is written; that one's error is raised here."""
        self.flush()
        self._sent = len(batch.tasks)
        self._writing = self._pool.submit(self._worker.write, batch.tasks, made)

    @property
    def unwritten(self) -> int:
        """Items on their way to the gallery; for a moment the worker may count them too."""
        return 0 if self._writing is None or self._writing.done() else self._sent

    def flush(self) -> bool:
        """Wait until all is written that was made; whether there was anything to wait for."""
        if self._writing is None:
            return False
        writing, self._writing = self._writing, None
        writing.result()
        return True

    def _claim_and_read(self, count: int) -> Batch:
        tasks = self._worker.claim(count)
        return Batch(tasks, self._worker.read(tasks) if tasks else None)
