"""Workers on a cluster that are given batches and may be lost at any moment.

A batch is the pool's until its result is handed over. If a worker or its node is lost, its batches
go to other workers at once, and another worker is asked for in its place. A batch that was in work
when its worker died is cut in halves that run alone: an item that kills its worker is found, and
costs nobody else. Doing a batch twice is harmless, because writing is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from midspan import __version__
from midspan.errors import ClusterError, MidspanError
from midspan.gallery import Task
from midspan.upgrade.cluster.actor import (
    Batch,
    BatchResult,
    EmbeddedBatch,
    Embedder,
    LostWorker,
    Make,
    WorkerError,
    WorkerInfo,
)
from midspan.upgrade.cluster.connect import Workers

DEATHS = 3  # of workers that had an item; if one more dies that had nothing else, it is the item
IN_A_ROW = 20  # workers lost, besides one for each place, while not one batch came back

Pack = Callable[[Sequence[Task]], Batch]


@dataclass(eq=False, slots=True)
class _SentBatch:
    tasks: Sequence[Task]
    deaths: int = 0
    sent: float = 0.0


@dataclass(eq=False, slots=True)
class _WorkerSlot:
    """A place for one worker on the cluster; who has it may change."""

    actor: Any
    loading: Any | None  # until its encoder is loaded
    card: WorkerInfo | None = None
    jobs: dict[Any, _SentBatch] = field(default_factory=dict)  # by the promise of their result


class Pool:
    """`give` while it has capacity, then `take`."""

    def __init__(
        self,
        ray: Any,
        make: Make,
        *,
        workers: Workers,
        welcome: Callable[[WorkerInfo], None],
        note: Callable[[LostWorker], None],
        pack: Pack | None = None,
    ) -> None:
        """welcome: sees each new worker before its first batch, and may raise. note: each loss."""
        self._ray, self._settings = ray, workers
        self._welcome, self._note, self._pack = welcome, note, pack or _plain
        self._make = ray.put(make)  # once, however many workers load it
        gpus, count = _share(ray, workers)
        self._actor = ray.remote(Embedder).options(
            num_cpus=workers.cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=workers.ahead,
            scheduling_strategy="SPREAD",
        )
        self._wants = f"{workers.cpus:g} CPU and {gpus:g} GPU"
        self._places: list[_WorkerSlot] = []
        self._queue: deque[_SentBatch] = deque()  # lost ones, which come first
        self._in_a_row = 0
        self._alive = time.monotonic()  # when some worker was last ready
        self.nodes: set[str] = set()
        self.lost = 0
        for _ in range(count):
            self._hire()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for place in self._places:
            self._ray.kill(place.actor)
        self._places.clear()

    # ---- what the caller sees

    @property
    def ready(self) -> int:
        """Workers with their encoder loaded."""
        return sum(place.card is not None for place in self._places)

    @property
    def items(self) -> int:
        """Items that were given and not yet handed back."""
        sent = sum(len(job.tasks) for place in self._places for job in place.jobs.values())
        return sent + sum(len(job.tasks) for job in self._queue)

    @property
    def room(self) -> int:
        """Batches that workers wait for; none while lost ones are to be sent again."""
        if self._queue:
            return 0
        return sum(self._free(place) for place in self._places)

    def give(self, tasks: Sequence[Task]) -> None:
        self._queue.append(_SentBatch(tasks))
        self._send()

    def take(self, *, wait: float) -> list[BatchResult]:
        """What came back, after so many seconds at most; nothing may have."""
        self._send()
        promises = self._promises()
        if not promises:  # all workers are ready, and have nothing to do
            time.sleep(wait)
            return []
        ready, _ = self._ray.wait(list(promises), num_returns=1, timeout=wait)
        if ready:  # and whatever else is there
            ready, _ = self._ray.wait(list(promises), num_returns=len(promises), timeout=0)
        done = [one for promise in ready for one in self._collect(promise, promises[promise])]
        done += self._give_up_on_the_stuck()
        self._check_patience()
        self._send()
        return done

    def forget_unsent(self) -> None:
        """Batches that no worker has are not needed any more."""
        self._queue.clear()

    # ---- workers come and go

    def _hire(self) -> None:
        actor = self._actor.remote()
        self._places.append(_WorkerSlot(actor, loading=actor.load.remote(self._make)))

    def _promises(self) -> dict[Any, _WorkerSlot]:
        by_promise: dict[Any, _WorkerSlot] = {}
        for place in self._places:
            if place.loading is not None:
                by_promise[place.loading] = place
            by_promise.update(dict.fromkeys(place.jobs, place))
        return by_promise

    def _collect(self, promise: Any, place: _WorkerSlot) -> list[BatchResult]:
        if place not in self._places:
            return []  # its worker was lost a moment ago, by another promise
        try:
            came = self._ray.get(promise)
        except self._ray.exceptions.RayTaskError as error:
            host = place.card.host if place.card else "the cluster"
            raise ClusterError(f"a worker on {host} failed: {_last_line(error)}") from error
        except self._ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):  # it would be so for every worker
                raise ClusterError(
                    "a worker could not begin; midspan must be installed on every node, with the "
                    f"extras that the encoder needs: {_last_line(error)}"
                ) from error
            return self._lose(place, why=_first_line(error))
        if isinstance(came, WorkerError):
            raise _as_error(came, host=place.card.host if place.card else "")
        if isinstance(came, WorkerInfo):
            self._start(place, came)
            return []
        assert isinstance(came, EmbeddedBatch)
        assert place.card is not None
        job = place.jobs.pop(promise)
        self._in_a_row = 0
        self._alive = time.monotonic()
        return [BatchResult(job.tasks, came.embedded, came.seconds, place.card.host)]

    def _start(self, place: _WorkerSlot, card: WorkerInfo) -> None:
        if card.version != __version__:
            raise ClusterError(
                f"the worker on {card.host} has midspan {card.version}, this is {__version__}; "
                "install the same version on every node"
            )
        self._welcome(card)
        place.loading, place.card = None, card
        self._alive = time.monotonic()
        self.nodes.add(card.node)

    def _lose(self, place: _WorkerSlot, *, why: str) -> list[BatchResult]:
        """Its batches go to the front; another worker is asked for in its place."""
        self._ray.kill(place.actor)  # it may be alive behind a broken connection
        self._places.remove(place)
        jobs, given_up = list(place.jobs.values()), list[BatchResult]()
        host = place.card.host if place.card else ""
        for job in reversed(jobs):
            job.deaths += 1
            if len(job.tasks) == 1 and job.deaths > DEATHS:
                given_up.append(BatchResult(job.tasks, None, 0.0, host))
            else:
                self._queue.extendleft(reversed(_halves(job)))
        self.lost += 1
        self._in_a_row += 1
        node = place.card.node if place.card else ""
        self._note(LostWorker(host, node, why, sum(len(job.tasks) for job in jobs)))
        if self._in_a_row > IN_A_ROW + len(self._places):
            raise ClusterError(
                f"{self._in_a_row} workers were lost one after another and not one batch came "
                f"back; the last one: {why}"
            )
        self._hire()
        return given_up

    def _give_up_on_the_stuck(self) -> list[BatchResult]:
        late = time.monotonic() - self._settings.stuck
        stuck = [
            place for place in self._places if any(job.sent < late for job in place.jobs.values())
        ]
        why = f"a batch did not come back within {self._settings.stuck:g} s"
        return [done for place in stuck for done in self._lose(place, why=why)]

    def _check_patience(self) -> None:
        if self.ready:
            self._alive = time.monotonic()
        elif time.monotonic() - self._alive > self._settings.patience:
            raise ClusterError(
                f"no worker was ready within {self._settings.patience:g} s: each needs "
                f"{self._wants}, and the cluster has {_resources(self._ray)} (`ray status` says "
                "what is taken); ask for less (`gpus`), or add nodes"
            )

    # ---- batches go out

    def _free(self, place: _WorkerSlot) -> int:
        if place.card is None or any(job.deaths for job in place.jobs.values()):
            return 0  # an item that may have killed a worker is sent alone
        return self._settings.ahead - len(place.jobs)

    def _send(self) -> None:
        while self._queue:
            job = self._queue[0]
            open_to = [
                place
                for place in self._places
                if self._free(place) > 0 and not (job.deaths and place.jobs)
            ]
            if not open_to:
                return
            self._queue.popleft()
            place = min(open_to, key=lambda place: len(place.jobs))
            job.sent = time.monotonic()
            place.jobs[place.actor.work.remote(self._pack(job.tasks))] = job


def _plain(tasks: Sequence[Task]) -> Batch:
    return Batch(tuple(task.item for task in tasks))


def _halves(job: _SentBatch) -> list[_SentBatch]:
    if len(job.tasks) == 1:
        return [job]
    middle = (len(job.tasks) + 1) // 2
    return [_SentBatch(part, job.deaths) for part in (job.tasks[:middle], job.tasks[middle:])]


def _share(ray: Any, workers: Workers) -> tuple[float, int]:
    """(GPUs of each worker, how many workers)."""
    has = ray.cluster_resources()
    gpus = workers.gpus if workers.gpus is not None else float(has.get("GPU", 0) >= 1)
    if workers.count is not None:
        return gpus, workers.count
    places = has.get("GPU", 0) / gpus if gpus else has.get("CPU", 0) / workers.cpus
    return gpus, max(1, int(places))


def _resources(ray: Any) -> str:
    has = ray.cluster_resources()
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    return f"{has.get('CPU', 0):g} CPU and {has.get('GPU', 0):g} GPU on {nodes} nodes"


def _as_error(came: WorkerError, *, host: str) -> MidspanError:
    """The worker's own error, with the name of its machine."""
    error = came.kind.__new__(came.kind)
    error.args = (f"{came.message} (on the worker {host})" if host else came.message,)
    return error


def _last_line(error: Exception) -> str:
    """Of a traceback: what it was about. The rest is in the cause, and in Ray's logs."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"[:300]
