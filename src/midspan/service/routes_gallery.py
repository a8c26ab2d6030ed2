"""The gallery as a whole, its audit log, events, health and metrics; and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from midspan.errors import MidspanError
from midspan.service.answers import answer
from midspan.service.context import Context, all_contexts, context_of, service_of
from midspan.service.errors import NotFound, Overloaded
from midspan.service.metrics import CONTENT_TYPE

KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
PAGE = Path(__file__).parent / "page"


async def health(request: Request) -> Response:
    """The process answers."""
    return answer({"status": "ok"})


async def ready(request: Request) -> Response:
    """Every gallery answers too."""
    for context in all_contexts(request).values():
        try:
            await context.service.reading.run(context.service.look)
        except (MidspanError, Overloaded):
            return answer({"status": "not ready"}, status=503)
    return answer({"status": "ready"})


async def metrics(request: Request) -> Response:
    contexts = list(all_contexts(request).values())
    text = await contexts[0].service.reading.run(_metrics, contexts)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


def _metrics(contexts: Sequence[Context]) -> bytes:
    resources = contexts[0].service.resources
    metrics = resources.metrics
    with metrics.looking:
        metrics.forget_galleries()
        for context in contexts:
            context.status.tell_metrics()
            for job in context.jobs.running():
                metrics.jobs.labels(context.service.name, job.kind).inc()
        for executor in resources.executors:
            metrics.queue.labels(executor.name).set(executor.depth)
        for batchers in zip(
            *((one.service.encode, one.service.search) for one in contexts), strict=True
        ):
            name = batchers[0].name
            metrics.queue.labels(name).set(sum(one.depth for one in batchers))
            metrics.batches.labels(name).set(sum(one.batches for one in batchers))
            metrics.pieces.labels(name).set(sum(one.pieces for one in batchers))
        metrics.decoders.set(resources.decoder.replaced)
        return metrics.text()


async def list_galleries(request: Request) -> Response:
    """The galleries of this service, the default first."""
    contexts = all_contexts(request)

    def look() -> list[dict[str, object]]:
        return [
            {"name": name, "default": context.service.prefix == "/v1", **context.status.glance()}
            for name, context in contexts.items()
        ]

    return answer({"galleries": await service_of(request).reading.run(look)})


async def info(request: Request) -> Response:
    """What the gallery holds, in numbers."""
    return answer(await service_of(request).reading.run(context_of(request).status.gallery))


async def verify(request: Request) -> Response:
    """Look at every item and vector; changes nothing. Takes time on a large gallery."""
    service = service_of(request)
    return answer((await service.scanning.run(service.gallery.verify)).to_dict())


async def audit(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
    """Who did what and when, newest first."""
    service = service_of(request)
    entries = await service.reading.run(service.gallery.audit_log, limit=limit)
    return answer({"entries": [asdict(entry) for entry in entries]})


async def events(request: Request) -> Response:
    """Server-sent events: `gallery` and `upgrade` whenever they change, and heartbeats."""
    hub = context_of(request).hub
    hub.check_room()
    return StreamingResponse(
        hub.stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


async def index(request: Request) -> Response:
    return _file(request, "index.html")


async def docs(request: Request) -> Response:
    """The API, to be read and tried in a browser."""
    return _file(request, "docs.html")


async def page_file(request: Request, name: str) -> Response:
    return _file(request, name)


def _file(request: Request, name: str) -> Response:
    entry = request.app.state.page.get(name)
    if entry is None:
        raise NotFound("there is no such file of the page")
    content, kind = entry
    return Response(content, headers={"Content-Type": kind, "Cache-Control": "no-cache"})


def load_page(folder: Path = PAGE) -> dict[str, tuple[bytes, str]]:
    """The files that are there now, read once: no name of a client ever becomes a path."""
    if not folder.is_dir():
        return {}
    return {
        file.name: (file.read_bytes(), KINDS[file.suffix])
        for file in sorted(folder.iterdir())
        if file.is_file() and file.suffix in KINDS
    }
