"""The upgrade over HTTP. Steps that take long continue as jobs and answer 202."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from midspan.gallery import AuditEvent
from midspan.service.answers import answer, is_admin
from midspan.service.bodies import read_json
from midspan.service.context import context_of, gallery_of, service_of
from midspan.service.errors import Cancelled, NotPossible
from midspan.service.jobs import JobRun
from midspan.service.piecewise import piecewise
from midspan.service.quality import points_as_json
from midspan.service.requests import LARGEST_PAGE
from midspan.service.requests_upgrade import (
    Empty,
    UpgradeFinish,
    UpgradePause,
    UpgradeResume,
    UpgradeRollback,
    UpgradeRun,
    UpgradeSettings,
    UpgradeStart,
    UpgradeTraffic,
)
from midspan.service.routes_jobs import as_job
from midspan.service.search_service import SearchService
from midspan.service.upgrade_worker import START
from midspan.spaces import Space
from midspan.upgrade import Embed, Upgrade

Limit = Annotated[int, Query(ge=1, le=LARGEST_PAGE)]


async def status(request: Request) -> Response:
    return answer(await service_of(request).reading.run(context_of(request).status.upgrade))


async def plan(request: Request) -> Response:
    """What an upgrade would do and what the gate says. Writes nothing."""
    service = service_of(request)
    body = await read_json(request, UpgradeSettings, executor=service.admin)

    def work(job: JobRun) -> dict[str, Any]:
        space = _destination(service)
        made = Upgrade.plan(
            service.gallery,
            to=service.vectors if service.vectors is not None else space,
            mode=body.mode,
            bridge=_bridge(service, body),
            order=body.order,
            embed=_embed(service, space.fingerprint),
            sample_size=body.sample,
        ).to_dict()
        del made["location"]
        return made

    return await as_job(request, "upgrade plan", work)


async def start(request: Request) -> Response:
    """From the next query on the new encoder answers."""
    context, service = context_of(request), service_of(request)
    body = await read_json(request, UpgradeStart, executor=service.admin)
    gallery = gallery_of(request)

    def step(job: JobRun) -> None:
        space = _destination(service)
        before = gallery.state.upgrade
        with service.stepping:
            asked = {**body.model_dump(), "job": job.id}
            gallery.record(AuditEvent(who=gallery.who, what=START, details=asked))
            try:
                Upgrade.start(
                    gallery,
                    to=service.vectors if service.vectors is not None else space,
                    mode=body.mode,
                    bridge=_bridge(service, body),
                    order=body.order,
                    embed=None
                    if service.vectors is not None
                    else _embed(service, space.fingerprint),
                    sample_size=body.sample,
                    traffic=body.traffic,
                    override=body.override,
                )
            except Cancelled:
                if before is None and gallery.state.upgrade is not None:
                    Upgrade(gallery).rollback()  # as it was before
                raise
            if body.run:
                context.worker.request_run(gallery, max_rate=None)

    return await _stepped(request, "start", step)


async def run(request: Request) -> Response:
    """The backfill, in this server; it continues after a restart."""
    context, service = context_of(request), service_of(request)
    body = await read_json(request, UpgradeRun, executor=service.admin)
    gallery = gallery_of(request)

    def step(job: JobRun) -> None:
        state = gallery.state
        if state.target is None:
            raise NotPossible("nothing is to be embedded; begin with /v1/upgrade/start")
        if service.embed_into(state.target) is None:
            raise NotPossible(
                f"this service has no encoder for {state.spaces[state.target]}; start it with "
                "`new_encoder`, or run the backfill elsewhere: midspan upgrade run"
            )
        context.worker.request_run(gallery, max_rate=body.max_rate)

    return await _stepped(request, "run", step, quick=True)


async def traffic(request: Request) -> Response:
    """Canary: the share of the queries that the new way answers; 0 is shadow."""
    body = await read_json(request, UpgradeTraffic, executor=service_of(request).admin)
    gallery = gallery_of(request)
    return await _stepped(
        request, "traffic", lambda job: Upgrade(gallery).set_traffic(body.traffic), quick=True
    )


async def pause(request: Request) -> Response:
    """The backfill stops within a batch, in every process. Searches go on."""
    body = await read_json(request, UpgradePause, executor=service_of(request).admin)
    gallery = gallery_of(request)
    return await _stepped(
        request, "pause", lambda job: Upgrade(gallery).pause(reason=body.reason), quick=True
    )


async def resume(request: Request) -> Response:
    """The backfill continues; after a gate that failed only with an override that says why."""
    context, service = context_of(request), service_of(request)
    body = await read_json(request, UpgradeResume, executor=service.admin)
    gallery = gallery_of(request)

    def step(job: JobRun) -> None:
        Upgrade(gallery).resume(override=body.override)
        if service.embed_into(gallery.state.target) is not None:
            kept = context.worker.run_request()
            context.worker.request_run(gallery, max_rate=None if kept is None else kept.max_rate)

    return await _stepped(request, "resume", step, quick=True)


async def retry(request: Request) -> Response:
    """Items that failed are put back on the work list."""
    await read_json(request, Empty, executor=service_of(request).admin)
    gallery = gallery_of(request)

    def step(job: JobRun) -> None:
        if gallery.state.target is None:
            raise NotPossible("no item waits, so none has failed")
        Upgrade(gallery).retry()

    return await _stepped(request, "retry", step, quick=True)


async def gate(request: Request) -> Response:
    """Ask the old service and today's the same queries. A FAIL pauses the upgrade."""
    context, service = context_of(request), service_of(request)
    await read_json(request, Empty, executor=service.admin)
    gallery = gallery_of(request)

    def work(job: JobRun) -> dict[str, Any]:
        result = context.quality.gate(gallery).to_dict()
        kept = ("verdict", "flips", "labelled", "metric", "n_queries", "worst", "notes")
        checks = [{name: one for name, one in c.items() if name != "p"} for c in result["checks"]]
        return {**{name: result[name] for name in kept}, "checks": checks}

    return await as_job(request, "upgrade gate", work)


async def finish(request: Request) -> Response:
    """The new vectors alone answer; the old ones are kept until `forget`."""
    service = service_of(request)
    body = await read_json(request, UpgradeFinish, executor=service.admin)
    gallery = gallery_of(request)

    def step(job: JobRun) -> None:
        with service.stepping:
            Upgrade(gallery).finish(
                force=body.force, override=body.override, keep_old=body.keep_old
            )

    return await _stepped(request, "finish", step)


async def forget(request: Request) -> Response:
    """Drop the old vectors of a finished upgrade, for good, and return their disk."""
    service = service_of(request)
    await read_json(request, Empty, executor=service.admin)
    gallery = gallery_of(request)

    def step(job: JobRun) -> None:
        with service.stepping:
            Upgrade(gallery).forget()

    return await _stepped(request, "forget", step)


async def rollback(request: Request) -> Response:
    """The old vectors answer again, from the next query on."""
    body = await read_json(request, UpgradeRollback, executor=service_of(request).admin)
    gallery = gallery_of(request)

    def step(job: JobRun) -> None:
        Upgrade(gallery).rollback(drop=body.drop)

    return await _stepped(request, "rollback", step, quick=True)


async def curve(request: Request) -> Response:
    """Quality along the backfill, measured on shadow queries as it goes."""
    points, baseline = await service_of(request).reading.run(context_of(request).quality.curve)
    return answer(
        {
            "points": points_as_json(points),
            "baseline": None if baseline is None else asdict(baseline),
        }
    )


async def flips(request: Request, limit: Limit = 20) -> Response:
    """The worst negative flips of the last measurement: right before, wrong now."""
    recorded = await service_of(request).reading.run(context_of(request).quality.last_flips)
    return answer(
        {
            "flips": [asdict(one) for one in recorded.flips[:limit]],
            "queries": recorded.queries,
            "labelled": recorded.labelled,
        }
    )


async def failures(
    request: Request,
    after: Annotated[str, Query(max_length=512)] = "",
    limit: Limit = 100,
) -> Response:
    """Items that failed, with reasons."""
    service = service_of(request)
    failures = await service.reading.run(service.gallery.work.failures, after=after, limit=limit)
    following = failures[-1].id if len(failures) == limit else None
    admin = is_admin(request)
    shown = [
        {**asdict(one), "uri": one.uri if admin else service.image_roots.shown(one.uri)}
        for one in failures
    ]
    return answer({"failures": shown, "next": following})


# ---- what the steps share


async def _stepped(
    request: Request, name: str, step: Callable[[JobRun], None], *, quick: bool = False
) -> Response:
    """The status after the step; 202 with a job if it takes long."""
    status = context_of(request).status

    def work(job: JobRun) -> dict[str, Any]:
        step(job)
        return status.upgrade()

    return await as_job(request, f"upgrade {name}", work, quick=quick)


def _embed(service: SearchService, fingerprint: str) -> Embed | None:
    embed = service.embed_into(fingerprint)
    return None if embed is None else piecewise(embed)


def _destination(service: SearchService) -> Space:
    space = service.destination()
    if space is None:
        raise NotPossible(
            "where to? start the service with `new_encoder`, or with new_vectors in its settings"
        )
    return space


def _bridge(service: SearchService, body: UpgradeSettings) -> Any:
    return service.settings.bridge if body.mode in ("map-query", "map-gallery") else None
