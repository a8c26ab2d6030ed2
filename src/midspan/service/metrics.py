"""What Prometheus may know. Gallery numbers are read when it asks, not at each request."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
GATES = ("PASS", "WARN", "FAIL")
PHASES = ("none", "mapping", "running", "paused", "finishing")
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
            "midspan_items", "Items by the space that answers", ["space"], registry=registry
        )
        self.pending = Gauge("midspan_backfill_pending", "Items to embed", registry=registry)
        self.failed = Gauge("midspan_backfill_failed", "Items given up", registry=registry)
        self.rate = Gauge("midspan_backfill_rate", "Items a second", registry=registry)
        self.gate = Gauge(
            "midspan_gate", "1 for the present verdict", ["verdict"], registry=registry
        )
        self.phase = Gauge(
            "midspan_upgrade_phase", "1 for the present phase", ["phase"], registry=registry
        )
        self.recent = Recent()
        self._children: dict[tuple[str, str, str], tuple[Histogram, Counter]] = {}

    def answered(self, *, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, str(status))
        if key not in self._children:  # looking one up by its labels takes longer than counting
            self._children[key] = (self.seconds.labels(*key[:2]), self.requests.labels(*key))
        histogram, counter = self._children[key]
        histogram.observe(seconds)
        counter.inc()
        if route.startswith("/v1/search/"):
            self.recent.add(seconds)

    def set_gallery(
        self,
        *,
        by_space: Mapping[str, int],
        pending: int,
        failed: int,
        rate: float | None,
        gate: str | None,
        phase: str,
    ) -> None:
        self.items.clear()
        for space, count in by_space.items():
            self.items.labels(space).set(count)
        self.pending.set(pending)
        self.failed.set(failed)
        self.rate.set(rate or 0.0)
        for verdict in GATES:
            self.gate.labels(verdict).set(verdict == gate)
        for name in PHASES:
            self.phase.labels(name).set(name == phase)

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
