"""Below full traffic: what the old way answered is asked of the new way too, for comparison.

Nobody waits for it. A few comparisons are under way at a time; under load queries are left out,
and counted as such.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace

from midspan.errors import MidspanError
from midspan.gallery import Hit, State
from midspan.service import logs
from midspan.service.encoding import Loaded
from midspan.service.errors import ServiceError
from midspan.service.search_service import SearchParams, SearchService
from midspan.spaces import FloatArray
from midspan.upgrade import Record

AT_ONCE = 2  # comparisons under way for a gallery; a further query is left out


@dataclass(frozen=True, slots=True)
class Answered:
    """An image search, as it was answered."""

    image: bytes
    vector: FloatArray  # (1, D) by the last of its encoders, the old one where the old way answered
    params: SearchParams
    hits: list[Hit]


def compare_later(service: SearchService, state: State, answered: Answered) -> None:
    """If the old way answered, and this service has the new encoder. On the event loop."""
    record = Record.of(state)
    if answered.params.arm != "old" or record is None or record.phase not in ("running", "paused"):
        return
    new = service.encoders.get(record.new)
    if new is None:
        return
    if len(service.comparing) >= AT_ONCE:
        service.arms.drop()
        return
    task = asyncio.create_task(_compare(service, record, new, answered))
    service.comparing.add(task)  # the event loop itself keeps none
    task.add_done_callback(service.comparing.discard)


async def _compare(service: SearchService, record: Record, new: Loaded, answered: Answered) -> None:
    try:
        began = time.perf_counter()
        (vector,) = await service.embed_image(answered.image, new)
        results = await service.reading.run(_search, service, record, vector, answered)
        seconds = time.perf_counter() - began
        before, after = ([hit.id for hit in hits] for hits in (answered.hits, results))
        service.arms.compare(before, after, seconds)
    except (MidspanError, ServiceError) as error:  # the upgrade ended, or live queries come first
        service.arms.drop()
        logs.event("no comparison", level=10, reason=str(error))
    except Exception as error:
        logs.fault("comparison", error)


def _search(
    service: SearchService, record: Record, vector: FloatArray, answered: Answered
) -> list[Hit]:
    """The new way's answer; not counted among what live queries return."""
    spaces = service.gallery.state.spaces
    queries = [(spaces[record.new], vector), (spaces[record.old], answered.vector)]
    queries = queries if record.mode == "both" else queries[:1]
    return service.search_in(queries, replace(answered.params, arm="new"))[0]
