"""What comes back from a cluster: batches that were embedded, and workers that were lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from midspan.errors import ClusterError
from midspan.gallery import Item, Task
from midspan.upgrade.embed import Embedded

DEADLY = "every worker that embedded it died (out of memory, or a crash while decoding)"


@dataclass(frozen=True, slots=True)
class Done:
    """A batch that came back. Without `embedded`: its one item killed every worker it met."""

    tasks: Sequence[Task]
    embedded: Embedded | None
    seconds: float
    host: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker that is gone, and how many items were sent again."""

    host: str
    node: str
    why: str
    items: int

    def __str__(self) -> str:
        where = self.host or "the cluster"
        return f"a worker on {where} is lost ({self.why}); {self.items} items are sent again"


def check_sight(came: Done, seen_here: Callable[[Item], bool]) -> None:
    """A worker that can read none of its images is refused if this machine can read them.

    Otherwise a storage that is not mounted on a node would send a whole gallery to the failures.
    """
    if came.embedded is None or len(came.embedded.failed) < len(came.tasks):
        return
    for item in (task.item for task in came.tasks):
        if seen_here(item):
            raise ClusterError(
                f"the worker on {came.host} can read none of {len(came.tasks)} images, but this "
                f"machine can, first {item.uri}: mount their storage at the same place on every "
                "node, or send the images along (--ship-images)"
            )
