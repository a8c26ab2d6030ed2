"""What the galleries of one service share: metrics, decoders, and threads by kind of work."""

from __future__ import annotations

from midspan.service.bounded_executor import BoundedExecutor
from midspan.service.decoding import DecodePool
from midspan.service.metrics import Metrics
from midspan.service.settings import Limits


class Resources:
    """Limits are those of the service: one busy gallery leaves no more to the others."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.metrics = Metrics()
        self.decoder = DecodePool(limits)
        self.reading = BoundedExecutor(
            "read", threads=limits.search_threads, waiting=limits.waiting
        )
        self.writing = BoundedExecutor("write", threads=2, waiting=limits.waiting)
        self.admin = BoundedExecutor("admin", threads=2, waiting=16)
        # steps of an upgrade that take long
        self.jobs = BoundedExecutor("jobs", threads=2, waiting=16)
        # long looks must not hold up others
        self.scanning = BoundedExecutor("scan", threads=1, waiting=2)
        self.decoding = BoundedExecutor(
            "decode", threads=limits.decode_workers, waiting=limits.waiting
        )

    @property
    def executors(self) -> tuple[BoundedExecutor, ...]:
        return self.decoding, self.reading, self.writing, self.scanning, self.admin, self.jobs

    def close(self) -> None:
        """What was begun is finished first."""
        for executor in self.executors:
            executor.close()
        self.decoder.close()
