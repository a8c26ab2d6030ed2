"""What the galleries of one service share: metrics, decoders, and threads by kind of work."""

from __future__ import annotations

from midspan.service.decoding import DecodePool
from midspan.service.lanes import Lane
from midspan.service.metrics import Metrics
from midspan.service.settings import Limits


class Resources:
    """Limits are those of the service: one busy gallery leaves no more to the others."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.metrics = Metrics()
        self.decoder = DecodePool(limits)
        self.reading = Lane("read", threads=limits.search_threads, waiting=limits.waiting)
        self.writing = Lane("write", threads=2, waiting=limits.waiting)
        self.admin = Lane("admin", threads=2, waiting=16)
        self.jobs = Lane("jobs", threads=2, waiting=16)  # steps of an upgrade that take long
        self.scanning = Lane("scan", threads=1, waiting=2)  # long looks must not hold up others
        self.decoding = Lane("decode", threads=limits.decode_workers, waiting=limits.waiting)

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self.decoding, self.reading, self.writing, self.scanning, self.admin, self.jobs

    def close(self) -> None:
        """What was begun is finished first."""
        for lane in self.lanes:
            lane.close()
        self.decoder.close()
