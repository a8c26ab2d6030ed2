"""The upgrade over HTTP. Steps that take long go on in the background and answer 202."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from midspan.gallery import Entry, Gallery
from midspan.service.answers import answer
from midspan.service.bodies import read_json
from midspan.service.context import context_of, core_of, gallery_of
from midspan.service.core import Core
from midspan.service.errors import NotPossible
from midspan.service.jobs import START
from midspan.service.models import LARGEST_PAGE
from midspan.service.models_upgrade import (
    Empty,
    UpgradeFinish,
    UpgradePause,
    UpgradeRollback,
    UpgradeRun,
    UpgradeSettings,
    UpgradeStart,
)
from midspan.service.quality import points_as_json
from midspan.spaces import Embeddings, Space
from midspan.upgrade import Upgrade
from midspan.upgrade.embed import embed_all
from midspan.upgrade.orders import LEARNT
from midspan.upgrade.priorities import sample_items

PATIENCE = 10.0  # seconds that a step may take before the answer is 202
SAMPLE = 200  # items that are embedded for a plan's evidence, or for what an order learns

Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE)]


async def status(request: Request) -> Response:
    return answer(await core_of(request).reading.run(context_of(request).standing.upgrade))


async def plan(request: Request) -> Response:
    """What an upgrade would do and what the gate says. Writes nothing."""
    core = core_of(request)
    body = await read_json(request, UpgradeSettings, lane=core.admin)

    def make() -> dict[str, Any]:
        space = _destination(core)
        made = Upgrade.plan(
            core.gallery,
            to=core.vectors if core.vectors is not None else space,
            mode=body.mode,
            bridge=_bridge(core, body),
            order=body.order,
            calibrate=body.calibrate,
            sample=_sample(core, core.gallery, space),
            embed=core.embed_into(space.fingerprint),
        ).to_dict()
        del made["location"]
        return made

    return answer(await core.admin.run(make))


async def start(request: Request) -> Response:
    """From the next query on the new encoder answers."""
    context, core = context_of(request), core_of(request)
    body = await read_json(request, UpgradeStart, lane=core.admin)
    gallery = gallery_of(request)

    def step() -> None:
        with core.stepping:
            space = _destination(core)
            learns = body.calibrate is not False or body.order in LEARNT
            asked = body.model_dump()
            gallery.store.record(Entry(who=gallery.who, what=START, details=asked))
            Upgrade.start(
                gallery,
                to=core.vectors if core.vectors is not None else space,
                mode=body.mode,
                bridge=_bridge(core, body),
                order=body.order,
                calibrate=body.calibrate,
                sample=_sample(core, gallery, space) if learns else None,
            )
            if body.run:
                context.job.want(gallery, max_rate=None)

    return await _stepped(request, step)


async def run(request: Request) -> Response:
    """The backfill, in this server; it goes on after a restart."""
    context, core = context_of(request), core_of(request)
    body = await read_json(request, UpgradeRun, lane=core.admin)
    gallery = gallery_of(request)

    def step() -> None:
        state = gallery.state
        if state.target is None:
            raise NotPossible("nothing is to be embedded; begin with /v1/upgrade/start")
        if core.embed_into(state.target) is None:
            raise NotPossible(
                f"this service has no encoder for {state.spaces[state.target]}; start it with "
                "--new-encoder RUN, or run the backfill elsewhere: midspan upgrade run"
            )
        context.job.want(gallery, max_rate=body.max_rate)

    return await _stepped(request, step)


async def pause(request: Request) -> Response:
    """The backfill stops within a batch, in every process. Searches go on."""
    body = await read_json(request, UpgradePause, lane=core_of(request).admin)
    gallery = gallery_of(request)
    return await _stepped(request, lambda: Upgrade(gallery).pause(reason=body.reason))


async def resume(request: Request) -> Response:
    """The backfill goes on; a gate that failed is forgotten."""
    context, core = context_of(request), core_of(request)
    await read_json(request, Empty, lane=core.admin)
    gallery = gallery_of(request)

    def step() -> None:
        Upgrade(gallery).resume()
        if core.embed_into(gallery.state.target) is not None:
            kept = context.job.wish()
            context.job.want(gallery, max_rate=None if kept is None else kept.max_rate)

    return await _stepped(request, step)


async def retry(request: Request) -> Response:
    """Items that were given up are put back on the work list."""
    await read_json(request, Empty, lane=core_of(request).admin)
    gallery = gallery_of(request)

    def step() -> None:
        if gallery.state.target is None:
            raise NotPossible("nothing is to be embedded, so nothing was given up")
        Upgrade(gallery).retry()

    return await _stepped(request, step)


async def gate(request: Request) -> Response:
    """Ask the old service and today's the same queries. A FAIL pauses the upgrade."""
    context, core = context_of(request), core_of(request)
    await read_json(request, Empty, lane=core.admin)
    result = (await core.admin.run(context.quality.gate, gallery_of(request))).to_dict()
    wanted = ("verdict", "checks", "labelled", "metric", "n_queries", "worst")
    return answer({name: result[name] for name in wanted})


async def finish(request: Request) -> Response:
    """Drop the old vectors, for good."""
    core = core_of(request)
    body = await read_json(request, UpgradeFinish, lane=core.admin)
    gallery = gallery_of(request)

    def step() -> None:
        with core.stepping:
            Upgrade(gallery).finish(force=body.force)

    return await _stepped(request, step)


async def rollback(request: Request) -> Response:
    """The old vectors answer again, from the next query on."""
    body = await read_json(request, UpgradeRollback, lane=core_of(request).admin)
    gallery = gallery_of(request)

    def step() -> None:
        Upgrade(gallery).rollback(drop=body.drop)

    return await _stepped(request, step)


async def curve(request: Request) -> Response:
    """Quality along the backfill, measured on shadow queries as it goes."""
    points, baseline = await core_of(request).reading.run(context_of(request).quality.curve)
    return answer(
        {
            "points": points_as_json(points),
            "baseline": None if baseline is None else asdict(baseline),
        }
    )


async def flips(request: Request, limit: Limit = 20) -> Response:
    """The worst negative flips of the last measurement: right before, wrong now."""
    found = await core_of(request).reading.run(context_of(request).quality.last_flips)
    return answer(
        {
            "flips": [asdict(one) for one in found.flips[:limit]],
            "queries": found.queries,
            "labelled": found.labelled,
        }
    )


async def failures(
    request: Request,
    after: Annotated[str, Query(max_length=512)] = "",
    limit: Limit = 100,
) -> Response:
    """Items that were given up, with reasons."""
    core = core_of(request)
    found = await core.reading.run(core.gallery.store.failures, after=after, limit=limit)
    following = found[-1].id if len(found) == limit else None
    return answer({"failures": [asdict(one) for one in found], "next": following})


# ---- what the steps share


async def _stepped(request: Request, step: Callable[[], None]) -> Response:
    """The status after the step; 202 if it still goes on."""
    context, core = context_of(request), core_of(request)
    future = core.admin.begin(step)
    await asyncio.wait({future}, timeout=PATIENCE)
    if future.done():
        future.result()
        context.job.wake()
    found = await core.reading.run(context.standing.upgrade)
    return answer(found, status=200 if future.done() else 202)


def _destination(core: Core) -> Space:
    space = core.destination()
    if space is None:
        raise NotPossible(
            "where to? start the service with --new-encoder RUN, or with new_vectors in its "
            "settings"
        )
    return space


def _bridge(core: Core, body: UpgradeSettings) -> Any:
    return None if body.mode == "direct" else core.settings.bridge


def _sample(core: Core, gallery: Gallery, space: Space) -> Embeddings | None:
    """New vectors of some items; those of a file are all there already."""
    if core.vectors is not None:
        return core.vectors
    embed = core.embed_into(space.fingerprint)
    live = gallery.state.live[0]
    old = sample_items(gallery, space=live, count=SAMPLE)
    items = gallery.store.get(old.ids.tolist())
    if embed is None or not items:
        return None
    made = embed_all(embed, items, space=space).vectors
    return made if len(made) else None
