"""Embed a list of items on a Ray cluster: no gallery, nothing is written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from midspan import progress
from midspan.errors import DataError, ImageError, SpaceMismatch
from midspan.gallery import Item, Task
from midspan.spaces import Embeddings, Space
from midspan.upgrade.cluster.actor import (
    DEADLY,
    BatchResult,
    LostWorker,
    Make,
    WorkerInfo,
    check_sight,
)
from midspan.upgrade.cluster.connect import Workers, connected
from midspan.upgrade.cluster.pool import Pack, Pool

WAIT = 0.2  # seconds between looks at workers that load


def embed_on_cluster(
    items: Sequence[Item],
    make: Make,
    *,
    workers: Workers,
    batch: int = 256,
    pack: Pack | None = None,
    seen_here: Callable[[Item], bool] | None = None,
    on_failure: Callable[[str, str], None] | None = None,
    show: bool = False,
) -> tuple[Space, list[Embeddings]]:
    """Their vectors, batch by batch as they came back, and the space that they are in.

    on_failure: called for each item that has no vector (id, reason); without it that is an error.
    """
    if not items:
        raise DataError("nothing to embed: the list of items is empty")
    job = _Embedding(seen_here=seen_here, on_failure=on_failure, show=show)
    coming = _batches(items, batch)
    with (
        connected(workers.address) as ray,
        Pool(ray, make, workers=workers, welcome=job.welcome, note=job.note, pack=pack) as pool,
        progress.bar("embed", total=len(items), unit="items", show=show) as done,
    ):
        left = len(items)
        while left:
            while pool.room > 0 and (tasks := next(coming, None)) is not None:
                pool.give(tasks)
            for came in pool.take(wait=WAIT):
                job.keep(came)
                left -= len(came.tasks)
                done(len(came.tasks))
    assert job.space is not None
    return job.space, job.parts


class _Embedding:
    def __init__(
        self,
        *,
        seen_here: Callable[[Item], bool] | None,
        on_failure: Callable[[str, str], None] | None,
        show: bool,
    ) -> None:
        self.seen_here, self.on_failure, self.show = seen_here, on_failure, show
        self.space: Space | None = None
        self.parts: list[Embeddings] = []

    def welcome(self, card: WorkerInfo) -> None:
        """All workers must make vectors of one space: of an encoder that they load by name, too."""
        if self.space is None:
            self.space = card.space
        elif not card.space.same_as(self.space):
            raise SpaceMismatch(
                f"the encoder on {card.host} makes vectors in {card.space}, another worker's in "
                f"{self.space}: the nodes have different weights under one name"
            )

    def note(self, lost: LostWorker) -> None:
        if self.show:
            print(lost, file=sys.stderr)

    def keep(self, came: BatchResult) -> None:
        embedded = came.embedded
        if embedded is None:
            self._failed({task.item.id: DEADLY for task in came.tasks})
            return
        if self.seen_here is not None:
            check_sight(came, self.seen_here)
        self._failed({**embedded.failed, **embedded.hopeless})
        self.parts.append(embedded.vectors)

    def _failed(self, reasons: Mapping[str, str]) -> None:
        for id, why in reasons.items():
            if self.on_failure is None:
                raise ImageError(f"{id}: {why}")
            self.on_failure(id, why)


def _batches(items: Sequence[Item], size: int) -> Iterator[list[Task]]:
    for start in range(0, len(items), size):
        yield [Task(item, attempts=0) for item in items[start : start + size]]
