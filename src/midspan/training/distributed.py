"""The processes of one run, as torchrun starts them, and what they do together.

A single process needs none of it: torch.distributed is not started, and every call here returns
immediately. What is shared between the processes of a step (vectors, batch statistics,
gradients) is in midspan.losses.gather, batch_norm.py and torch's DistributedDataParallel.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from midspan.encoders.devices import device_named
from midspan.errors import ConfigError, ProcessLost, RunError

T = TypeVar("T")

STEP_TIMEOUT = timedelta(minutes=10)  # to wait for another process's step; NCCL's own default
SLOW_TIMEOUT = timedelta(days=7)  # while one works for all: old vectors, decoding, evaluation


@dataclass(frozen=True, slots=True)
class Processes:
    """The rank of this process among them. By default: a single process, which is the first."""

    rank: int = 0
    world: int = 1
    machine: int = 0  # number of the machine
    machine_rank: int = 0  # rank among the processes of this machine
    slow_group: dist.ProcessGroup | None = None  # for what may take hours

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_first_on_machine(self) -> bool:
        return self.machine_rank == 0

    def shares(self, total: int) -> tuple[int, ...]:
        """How many of `total` rows each process takes, in the order of ranks; they differ by 1."""
        ends = [total * rank // self.world for rank in range(self.world + 1)]
        return tuple(end - start for start, end in pairwise(ends))

    def share(self, total: int) -> slice:
        """The rows of this process among `total`."""
        return slice(total * self.rank // self.world, total * (self.rank + 1) // self.world)

    def once(self, work: Callable[[], T]) -> T:
        """Done by the first process of the run; all get the result, or stop with its error."""
        return self._by_one(work, mine=self.is_first, source=0)

    def once_per_machine(self, work: Callable[[], T]) -> T:
        """Done by the first process of each machine; all of that machine get the result."""
        return self._by_one(
            work, mine=self.is_first_on_machine, source=self.rank - self.machine_rank
        )

    def on_first_of_machine(self, work: Callable[[], T]) -> T | None:
        """Done by the first process of each machine, which alone has it; an error stops all."""
        kept: list[T] = []
        self.once_per_machine(lambda: kept.append(work()))
        return kept[0] if kept else None

    def all_gather(self, value: T) -> list[T]:
        """The value of every process, in the order of ranks."""
        if self.world == 1:
            return [value]
        values: list[T | None] = [None] * self.world
        dist.all_gather_object(values, value, group=self.slow_group)
        return values  # type: ignore[return-value]

    def gather_to_first(self, value: T) -> list[T]:
        """The value of every process for the first one; the others get nothing."""
        if self.world == 1:
            return [value]
        values: list[T | None] | None = [None] * self.world if self.is_first else None
        dist.gather_object(value, values, group=self.slow_group)
        return values or []  # type: ignore[return-value]

    def _by_one(self, work: Callable[[], T], *, mine: bool, source: int) -> T:
        if self.world == 1:
            return work()
        value: T | None = None
        error: Exception | None = None
        if mine:
            try:
                value = work()
            except Exception as caught:
                error = caught
        results = self.all_gather((value, None if error is None else str(error)))
        if error is not None:
            raise error
        for rank, (_, message) in enumerate(results):
            if message is not None:
                raise RunError(f"process {rank} of {self.world}: {message}")
        return results[source][0]  # type: ignore[return-value]

    def data_parallel(self, step: nn.Module, device: torch.device) -> nn.Module:
        """The step whose gradients are the mean over all processes; weights start as the first's.

        Some parameters have no gradient in some steps (a pair loss without pairs), so they are
        searched for. Buffers are the same everywhere by construction and are not sent.
        """
        if self.world == 1:
            return step
        with warnings.catch_warnings():
            # torch 2.13 has a new name for broadcast_buffers, which older ones do not know
            warnings.simplefilter("ignore", FutureWarning)
            return DistributedDataParallel(
                step,
                device_ids=[device] if device.type == "cuda" else None,
                broadcast_buffers=False,
                find_unused_parameters=True,
                gradient_as_bucket_view=True,
            )


SINGLE_PROCESS = Processes()


class StepConsensus:
    """The largest request of any process, known to all of them at the same step.

    With several processes it is that of the step before, so that no process waits for it.
    """

    def __init__(self, processes: Processes) -> None:
        self._alone = processes.world == 1
        self._pending: tuple[Tensor, dist.Work] | None = None

    def __call__(self, request: int) -> int:
        if self._alone:
            return request
        known = self.close()
        results = torch.tensor(request)  # on the CPU: reading it stops no GPU
        work = dist.all_reduce(results, op=dist.ReduceOp.MAX, async_op=True)
        assert work is not None
        self._pending = (results, work)
        return known

    def close(self) -> int:
        """Wait for pending exchanges."""
        if self._pending is None:
            return 0
        results, work = self._pending
        work.wait()
        self._pending = None
        return int(results)


@contextmanager
def join_processes(device: str | None) -> Iterator[tuple[Processes, torch.device]]:
    """Join the processes that torchrun has started, if it has; leave them at the end."""
    if dist.is_initialized():
        raise RunError(
            "torch.distributed is started already; under torchrun train() starts it itself, with "
            "the time limits that it needs"
        )
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes(), device_named(device)
        return
    machine_rank = int(os.environ["LOCAL_RANK"])
    where = _own_device(device, machine_rank)
    backend = "gloo" if where.type == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=STEP_TIMEOUT)
    try:
        yield (
            Processes(
                rank=dist.get_rank(),
                world=world,
                machine=int(os.environ.get("GROUP_RANK", "0")),
                machine_rank=machine_rank,
                slow_group=dist.new_group(backend="gloo", timeout=SLOW_TIMEOUT),
            ),
            where,
        )
    except (RuntimeError, ValueError) as error:
        if not _is_loss(error):
            raise
        # torchrun ends us too as soon as it sees the loss: the message comes first
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise ProcessLost(
            f"process {dist.get_rank()} of {world}: another process of this run is gone or has "
            f"not answered for {STEP_TIMEOUT.seconds // 60} minutes; the same command continues "
            f"from the last checkpoint ({str(error).splitlines()[0]})"
        ) from error
    finally:
        dist.destroy_process_group()


def check_shared(folder: Path, processes: Processes) -> None:
    """All machines must see the run folder: the run continues there after a stop."""
    blind = [rank for rank, seen in enumerate(processes.all_gather(folder.exists())) if not seen]
    if blind:
        raise RunError(
            f"{folder} is not visible to process {blind[0]} of {processes.world}; put the run "
            "folder on storage that all machines share"
        )


def launched_rank() -> int:
    """What torchrun has set, also before joining and after leaving."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def per_process_rng(device: torch.device) -> Iterator[None]:
    """Inside, random numbers of this process alone, as for dropout; outside, those of all.

    So what is drawn after the vectors are gathered is the same in every process.
    """
    if not dist.is_initialized():
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed((torch.initial_seed() + 1 + dist.get_rank()) % 2**63)
        yield


def _own_device(device: str | None, machine_rank: int) -> torch.device:
    if device is not None and ":" in device:
        raise ConfigError(
            f"device {device}: under torchrun every process takes the GPU of its own number; "
            "give `device` cuda, or choose GPUs by CUDA_VISIBLE_DEVICES"
        )
    chosen = device_named(device)
    if chosen.type != "cuda":
        return chosen
    if machine_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"process {machine_rank} of this machine has no GPU: there are "
            f"{torch.cuda.device_count()}; start torchrun with --nproc-per-node "
            f"{torch.cuda.device_count()}, or train with `device` cpu"
        )
    where = torch.device("cuda", machine_rank)
    torch.cuda.set_device(where)
    return where


def _is_loss(error: Exception) -> bool:
    """Whether a collective was aborted: NCCL has its own errors, gloo only says where."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)
