"""Below full traffic: what the old way answered is asked of the new way too, for comparison.

Nobody waits for it. A few comparisons are under way at a time; under load queries are left out,
and counted as such.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from midspan.errors import MidspanError
from midspan.gallery import Hit, State
from midspan.gallery.routing import Arm
from midspan.service import logs
from midspan.service.core import Asked, Core
from midspan.service.encoding import Loaded
from midspan.service.errors import ServiceError
from midspan.spaces import FloatArray
from midspan.upgrade import Record

AT_ONCE = 2  # comparisons under way for a gallery; a further query is left out


@dataclass(frozen=True, slots=True)
class Answered:
    """An image search, as it was answered."""

    image: bytes
    vector: FloatArray  # (1, D) by the last of its encoders, the old one where the old way answered
    asked: Asked
    hits: list[Hit]
    arm: Arm


def compare_later(core: Core, state: State, answered: Answered) -> None:
    """If the old way answered, and this service has the new encoder. On the event loop."""
    record = Record.of(state)
    if answered.arm != "old" or record is None or record.phase not in ("running", "paused"):
        return
    new = core.encoders.get(record.new)
    if new is None:
        return
    if len(core.comparing) >= AT_ONCE:
        core.arms.drop()
        return
    task = asyncio.create_task(_compare(core, record, new, answered))
    core.comparing.add(task)  # the event loop itself keeps none
    task.add_done_callback(core.comparing.discard)


async def _compare(core: Core, record: Record, new: Loaded, answered: Answered) -> None:
    try:
        began = time.perf_counter()
        (vector,) = await core.embed_image(answered.image, new)
        results = await core.reading.run(_search, core, record, vector, answered)
        seconds = time.perf_counter() - began
        before, after = ([hit.id for hit in hits] for hits in (answered.hits, results))
        core.arms.compare(before, after, seconds)
    except (MidspanError, ServiceError) as error:  # the upgrade ended, or live queries come first
        core.arms.drop()
        logs.event("no comparison", level=10, reason=str(error))
    except Exception as error:
        logs.fault("comparison", error)


def _search(core: Core, record: Record, vector: FloatArray, answered: Answered) -> list[Hit]:
    """The new way's answer; not counted among what live queries return."""
    spaces, asked = core.gallery.state.spaces, answered.asked
    came = [(spaces[record.new], vector), (spaces[record.old], answered.vector)]
    return core.gallery.search_in(
        came if record.mode == "both" else came[:1],
        arm="new",
        k=asked.k,
        filter=asked.parsed(),
        exact=asked.exact,
        threshold=asked.threshold,
    )[0]
