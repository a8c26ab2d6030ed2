"""Jobs over HTTP: how a long step stands, and its end."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from midspan.service.answers import answer, request_id
from midspan.service.bodies import read_json
from midspan.service.context import context_of, gallery_of, service_of
from midspan.service.jobs import Work
from midspan.service.requests_upgrade import Empty

PATIENCE = 10.0  # seconds that a step may take before the answer is 202
_WAIT = re.compile(r"\bwait=(\d{1,3})\b")


async def list_jobs(request: Request) -> Response:
    """Long steps of the last time, the newest first."""
    jobs = await service_of(request).reading.run(context_of(request).jobs.listing)
    return answer({"jobs": [asdict(job) for job in jobs]})


async def get_job(request: Request, job_id: str) -> Response:
    """How it stands: queued, running with progress, done, failed or cancelled."""
    job = await service_of(request).reading.run(context_of(request).jobs.get, job_id)
    return answer(asdict(job))


async def cancel_job(request: Request, job_id: str) -> Response:
    """Ask it to stop at the next safe point; what it had begun is undone."""
    service = service_of(request)
    await read_json(request, Empty, executor=service.admin)
    job = await service.reading.run(context_of(request).jobs.cancel, job_id)
    return answer(asdict(job))


async def as_job(request: Request, kind: str, work: Work, *, quick: bool = False) -> Response:
    """Its result if it ends within a few seconds; else 202 and the job.

    `Prefer: respond-async` asks for the job at once, `Prefer: wait=5` for it after 5 seconds.
    """
    context = context_of(request)
    job = context.jobs.begin(
        kind,
        work,
        gallery=gallery_of(request),
        request_id=request_id(request),
        quick=quick,
    )
    assert job.future is not None
    patience = _patience(request)
    if patience:
        await asyncio.wait({job.future}, timeout=patience)
    if patience and job.future.done():
        result = job.future.result()
        context.worker.wake()
        return answer(result)
    job.future.add_done_callback(lambda _: context.worker.wake())
    await service_of(request).reading.run(context.jobs.keep, job)
    told = answer(asdict(job.to_wire()), status=202)
    told.headers["Location"] = f"{context.service.prefix}/jobs/{job.id}"
    return told


def _patience(request: Request) -> float:
    preferred = request.headers.get("prefer", "")
    if "respond-async" in preferred:
        return 0.0
    match = _WAIT.search(preferred)
    return PATIENCE if match is None else min(PATIENCE, float(match[1]))
