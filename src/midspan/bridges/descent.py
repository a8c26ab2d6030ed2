"""What the learned bridges share: one small training loop, and how many epochs to run it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from midspan import progress
from midspan.bridges.base import Bridge, Pairs, unit
from midspan.bridges.retrieval import average_precisions, reciprocal_ranks
from midspan.errors import MissingDependency
from midspan.spaces import FloatArray, IntArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def need_torch(bridge: str) -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            "torch", extra="train", required_for=f"fitting a bridge of kind {bridge!r}"
        ) from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The same start for the same seed, and the caller's random state as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def descend(
    module: nn.Module,
    loss: Callable[[Tensor], Tensor],
    *,
    count: int,
    epochs: int,
    decay_over: int,
    warm_up: int,
    batch_size: int,
    optimiser: torch.optim.Optimizer,
    label: str,
    show: bool,
    after_epoch: Callable[[int], None] | None = None,
) -> None:
    """Shuffled batches of row numbers, a cosine schedule over `decay_over` epochs, CPU."""
    import torch

    def rate(epoch: int) -> float:
        if epoch < warm_up:
            return (epoch + 1) / (warm_up + 1)
        return 0.5 * (1.0 + math.cos(math.pi * (epoch - warm_up) / max(1, decay_over - warm_up)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    with progress.bar(label, total=epochs * count, unit="pairs", show=show) as done:
        for epoch in range(epochs):
            module.train()
            for rows in torch.split(torch.randperm(count), batch_size):
                if len(rows) == 1 and count > 1:  # batch norm has nothing to say about one row
                    continue
                optimiser.zero_grad()
                loss(rows).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            schedule.step()
            done(count)
            if after_epoch is not None:
                after_epoch(epoch + 1)


def held_out_split(pairs: Pairs, *, share: float, seed: int) -> tuple[IntArray, IntArray]:
    """(fit rows, held-out rows): whole classes if labels name ten or more, else single pairs."""
    rng = np.random.default_rng(seed)
    labels = pairs.labels
    classes = np.unique(labels) if labels is not None else np.array([])
    if labels is not None and len(classes) >= 10:
        out = rng.permutation(classes)[: max(2, round(share * len(classes)))]
        held = np.isin(labels, out)
    else:
        held = np.zeros(len(pairs), dtype=bool)
        held[rng.permutation(len(pairs))[: max(8, round(share * len(pairs)))]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def retrieval_score(bridge: Bridge, held: Pairs, *, queries: FloatArray | None = None) -> float:
    """Mean AP by class if the held-out pairs have labels, else mean reciprocal rank.

    `queries` are the target vectors, unless the bridge leads to a third space.
    """
    mapped = bridge.apply(held.source.vectors)
    metric = bridge.target.metric
    if queries is None:
        queries = unit(held.target.vectors) if metric == "cosine" else held.target.vectors
    if held.labels is not None:
        precisions = average_precisions(queries, mapped, held.labels, metric)
        if np.isfinite(precisions).any():
            return float(np.nanmean(precisions))
    return float(reciprocal_ranks(queries, mapped, metric).mean())


def array(tensor: Tensor) -> FloatArray:
    result: FloatArray = tensor.detach().numpy().astype(np.float32).copy()
    return result


def tensor32(values: Any) -> Tensor:
    import torch

    return torch.tensor(np.asarray(values, dtype=np.float32))
