"""What Prometheus may know. Gallery numbers are read when it asks, not at each request."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from midspan.gallery.engines.base import IndexStatus

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
GATES = ("PASS", "INCONCLUSIVE", "FAIL")
PHASES = ("none", "mapping", "running", "paused", "finished", "forgetting")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One for each application, so that two in a process do not mix."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.seconds = Histogram(
            "midspan_request_seconds",
            "Time to answer, by route",
            ["method", "route"],
            buckets=SECONDS,
            registry=registry,
        )
        self.requests = Counter(
            "midspan_requests_total",
            "Answers, by route and status",
            ["method", "route", "status"],
            registry=registry,
        )
        self.in_flight = Gauge("midspan_requests_in_flight", "Being answered", registry=registry)
        self.queue = Gauge(
            "midspan_queue_depth",
            "Waiting and running, by kind of work",
            ["queue"],
            registry=registry,
        )
        self.batches = Gauge(
            "midspan_batches", "Batches run together since the start", ["queue"], registry=registry
        )
        self.pieces = Gauge(
            "midspan_batched_requests", "Requests in those batches", ["queue"], registry=registry
        )
        self.decoders = Gauge(
            "midspan_decode_workers_replaced", "Decoders that died or hung", registry=registry
        )
        self.items = Gauge(
            "midspan_items",
            "Items by the space that answers",
            ["gallery", "space"],
            registry=registry,
        )
        self.pending = Gauge(
            "midspan_backfill_pending", "Items to embed", ["gallery"], registry=registry
        )
        self.failed = Gauge(
            "midspan_backfill_failed", "Items that failed", ["gallery"], registry=registry
        )
        self.rate = Gauge("midspan_backfill_rate", "Items a second", ["gallery"], registry=registry)
        self.gate = Gauge(
            "midspan_gate", "1 for the present verdict", ["gallery", "verdict"], registry=registry
        )
        self.phase = Gauge(
            "midspan_upgrade_phase",
            "1 for the present phase",
            ["gallery", "phase"],
            registry=registry,
        )
        self.indexed = Gauge(
            "midspan_index_rows",
            "Vectors by space and state of the index",
            ["gallery", "space", "state"],
            registry=registry,
        )
        self.unindexed = Gauge(
            "midspan_index_unindexed_rows",
            "Rows that searches compare one by one",
            ["gallery", "space"],
            registry=registry,
        )
        self.recall = Gauge(
            "midspan_index_recall",
            "Measured recall@10 of the index",
            ["gallery", "space"],
            registry=registry,
        )
        self.index_failed = Gauge(
            "midspan_index_failed_timestamp_seconds",
            "When a build failed; 0: never",
            ["gallery", "space"],
            registry=registry,
        )
        self.stale = Gauge(
            "midspan_index_age_seconds",
            "Since the index lacks vectors of the space, as this service has seen; 0: it has all",
            ["gallery", "space"],
            registry=registry,
        )
        self.lag = Gauge(
            "midspan_backfill_lag_seconds",
            "Since a worker last reported new vectors, while items wait",
            ["gallery"],
            registry=registry,
        )
        self.leases = Gauge(
            "midspan_lease_losses",
            "Workers on record that were lost with the items they held",
            ["gallery"],
            registry=registry,
        )
        self.jobs = Gauge(
            "midspan_jobs_running", "Long steps", ["gallery", "kind"], registry=registry
        )
        self.uploads = Gauge("midspan_uploads_waiting", "Bodies on their way in", registry=registry)
        self.uploads_memory = Gauge(
            "midspan_uploads_memory_bytes", "Of them in memory", registry=registry
        )
        self.uploads_disk = Gauge(
            "midspan_uploads_disk_bytes", "Of them on disk", registry=registry
        )
        self.recent = Recent()
        self.looking = threading.Lock()  # held while the gauges of the galleries are set and read
        self._children: dict[tuple[str, str, str], tuple[Histogram, Counter]] = {}

    def answered(self, *, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, str(status))
        if key not in self._children:  # looking one up by its labels takes longer than counting
            self._children[key] = (self.seconds.labels(*key[:2]), self.requests.labels(*key))
        histogram, counter = self._children[key]
        histogram.observe(seconds)
        counter.inc()
        if route.startswith("/v1/search"):
            self.recent.add(seconds)

    def forget_galleries(self) -> None:
        """Before they are set again: a space may be gone, a job ended."""
        for gauge in (
            *(self.items, self.pending, self.failed, self.rate, self.gate, self.phase, self.jobs),
            *(self.indexed, self.unindexed, self.recall, self.index_failed),
            *(self.stale, self.lag, self.leases),
        ):
            gauge.clear()

    def set_gallery(
        self,
        gallery: str,
        *,
        by_space: Mapping[str, int],
        pending: int,
        failed: int,
        rate: float | None,
        gate: str | None,
        phase: str,
    ) -> None:
        for space, count in by_space.items():
            self.items.labels(gallery, space).set(count)
        self.pending.labels(gallery).set(pending)
        self.failed.labels(gallery).set(failed)
        self.rate.labels(gallery).set(rate or 0.0)
        for verdict in GATES:
            self.gate.labels(gallery, verdict).set(verdict == gate)
        for name in PHASES:
            self.phase.labels(gallery, name).set(name == phase)

    def set_indexes(self, gallery: str, indexes: Mapping[str, IndexStatus]) -> None:
        """By the name of the space."""
        for space, index in indexes.items():
            self.indexed.labels(gallery, space, index.state).set(index.rows)
            self.unindexed.labels(gallery, space).set(index.unindexed)
            self.index_failed.labels(gallery, space).set(index.failed_at or 0.0)
            if index.recall is not None:
                self.recall.labels(gallery, space).set(index.recall)

    def set_ages(
        self, gallery: str, *, indexes: Mapping[str, float], lag: float, lease_losses: int
    ) -> None:
        """indexes: seconds by the name of the space."""
        for space, seconds in indexes.items():
            self.stale.labels(gallery, space).set(seconds)
        self.lag.labels(gallery).set(lag)
        self.leases.labels(gallery).set(lease_losses)

    def set_uploads(self, *, waiting: int, memory: int, disk: int) -> None:
        self.uploads.set(waiting)
        self.uploads_memory.set(memory)
        self.uploads_disk.set(disk)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class Recent:
    """Latencies of the last searches: the backfill rests when they get slow."""

    def __init__(self, *, seconds: float = 10.0, most: int = 1000) -> None:
        self._seconds = seconds
        self._seen: deque[tuple[float, float]] = deque(maxlen=most)
        self._lock = threading.Lock()

    def add(self, latency: float) -> None:
        with self._lock:
            self._seen.append((time.monotonic(), latency))

    def p99(self) -> float | None:
        since = time.monotonic() - self._seconds
        with self._lock:
            latencies = [latency for when, latency in self._seen if when >= since]
        return float(np.percentile(latencies, 99)) if latencies else None
