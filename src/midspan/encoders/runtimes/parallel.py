"""Several batches at once, each on a share of the processors: how a long job embeds on a CPU.

A network that spreads one batch over all processors waits for the slowest at every layer. Parallel
batches do not wait, and the images of one are read while another is computed.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from midspan.encoders.runtimes import cpu_threads
from midspan.encoders.runtimes.graph_cache import (
    TOLERANCE,
    Verdict,
    largest_difference,
    read_bulk_runtime,
    read_verdict,
    write_bulk_runtime,
    write_verdict,
)
from midspan.encoders.runtimes.session import GraphSession, open_session
from midspan.errors import MidspanError
from midspan.spaces import FloatArray

Run = Callable[[FloatArray], FloatArray]

MAX_WORKERS = 4  # each holds the activations of a batch; more processors work inside a worker
MIN_BATCHES = 4  # batches for each worker: fewer do not pay for a second session
TRIAL_FROM = 64  # batches that are worth finding out which runtime is faster
TRIAL_BATCHES = 5  # of each runtime; the best of them counts
FASTER = 0.95  # of the time that another runtime must take to be preferred


@dataclass(frozen=True, slots=True)
class ParallelRun:
    """`run` may be called by `count` threads at once."""

    count: int
    run: Run


def worker_count(batches: int) -> int:
    """The number of workers that so many batches are worth; 1: none in parallel."""
    count = min(cpu_threads(), MAX_WORKERS)
    return count if batches >= MIN_BATCHES * count else 1


class RuntimeTrial:
    """Two runtimes take turns with the batches at hand until it is known which one is faster.

    The rival is compared with the runtime whose vectors are known to be torch's, on one batch.
    """

    def __init__(
        self,
        fingerprint: str,
        known: GraphSession,
        rival: GraphSession,
        *,
        apart: float,
        here: Mapping[str, str],
    ) -> None:
        self._fingerprint, self._here = fingerprint, here
        self._known, self._rival = known, rival
        self._apart = apart  # of the known one, from torch
        self._seconds: dict[str, list[float]] = {known.runtime: [], rival.runtime: []}
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self._agreed = False  # until then the rival's vectors are not used
        self._chosen: GraphSession | None = None

    def run(self, batch: FloatArray) -> FloatArray:
        turn = next(self._turns)
        if self._chosen is None and turn == 0:
            return self._compared(batch)
        if self._chosen is not None or not self._agreed:
            certain: FloatArray = (self._chosen or self._known).run(batch)
            return certain
        session = (self._known, self._rival)[turn % 2]
        started = time.perf_counter()
        vectors: FloatArray = session.run(batch)
        seconds = (time.perf_counter() - started) / max(1, len(batch))
        with self._lock:
            self._seconds[session.runtime].append(seconds)
            if self._chosen is None and self._enough():
                self._choose()
        return vectors

    def _compared(self, batch: FloatArray) -> FloatArray:
        expected: FloatArray = self._known.run(batch)
        try:
            apart = self._apart + largest_difference(expected, self._rival.run(batch))
        except Exception:  # each runtime has its own kinds
            apart = float("inf")
        self._agreed = apart <= TOLERANCE
        write_verdict(
            self._fingerprint,
            Verdict(agrees=self._agreed, apart=apart),
            runtime=self._rival.runtime,
            version=self._rival.version,
        )
        if not self._agreed:
            self._settle(self._known)
        return expected

    def _enough(self) -> bool:
        return all(len(seconds) >= TRIAL_BATCHES for seconds in self._seconds.values())

    def _choose(self) -> None:
        best = {runtime: min(seconds) for runtime, seconds in self._seconds.items()}
        faster = best[self._rival.runtime] < FASTER * best[self._known.runtime]
        self._settle(self._rival if faster else self._known)

    def _settle(self, session: GraphSession) -> None:
        self._chosen = session
        write_bulk_runtime(self._fingerprint, session.runtime, here=self._here)


def fastest_run(path: Path, fingerprint: str, *, count: int, batches: int) -> Run:
    """A graph that agrees with torch in ONNX Runtime, in whichever runtime is faster here.

    The choice is kept next to the graph, for these versions and this number of processors.
    """
    here = _installed()
    chosen = read_bulk_runtime(fingerprint, here=here)
    if chosen == "openvino":
        try:
            return open_session(path, device="cpu", runtime=chosen, workers=count).run
        except MidspanError:  # the file was made by a machine that has it
            pass
    known = open_session(path, device="cpu", runtime="onnx", workers=count)
    verdict = read_verdict(fingerprint, runtime=known.runtime, version=known.version)
    undecided = chosen is None and "openvino" in here and batches >= TRIAL_FROM
    if not undecided or verdict is None or not verdict.agrees:
        return known.run
    try:
        rival = open_session(path, device="cpu", runtime="openvino", workers=count)
    except MidspanError:  # it does not read this graph
        write_bulk_runtime(fingerprint, known.runtime, here=here)
        return known.run
    return RuntimeTrial(fingerprint, known, rival, apart=verdict.apart, here=here).run


def _installed() -> dict[str, str]:
    """What a choice of a runtime depends on."""
    versions = {"threads": str(cpu_threads())}
    for runtime, package in (("onnx", "onnxruntime"), ("openvino", "openvino")):
        try:
            versions[runtime] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
