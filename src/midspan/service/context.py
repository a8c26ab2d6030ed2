"""From a request to the gallery that it asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from midspan.gallery import Filter, Gallery
from midspan.gallery.filters import And, Eq
from midspan.gallery.tenants import FIELD
from midspan.service.errors import NotFound
from midspan.service.events import Hub
from midspan.service.jobs import Jobs
from midspan.service.quality import Quality
from midspan.service.search_service import SearchService
from midspan.service.settings import NAME
from midspan.service.status_reporter import StatusReporter
from midspan.service.upgrade_worker import UpgradeWorker

PREFIX = "/v1/galleries/"
_OF_GALLERY = re.compile(rf"{PREFIX}({NAME.pattern})(?:/(?!galleries(?:/|$))(.+))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Context:
    """One gallery with all that works on it."""

    service: SearchService
    quality: Quality
    jobs: Jobs
    worker: UpgradeWorker
    hub: Hub
    status: StatusReporter

    @classmethod
    def of(cls, service: SearchService) -> Context:
        quality = Quality(service)
        worker = UpgradeWorker(service, quality)
        jobs = Jobs(service)
        status = StatusReporter(service, worker)
        hub = Hub(service, status.snapshot, jobs.running)
        jobs.on_end = hub.nudge
        return cls(service, quality, jobs, worker, hub, status)


class GalleryPrefix:
    """/v1/galleries/NAME/… is /v1/… of that gallery: every route, and the rules of each, hold."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            match = _OF_GALLERY.fullmatch(scope["path"])
            if match is not None:
                path = f"/v1/{match[2] or 'gallery'}"
                state = {**scope.get("state", {}), "gallery": match[1]}
                scope = {**scope, "path": path, "state": state}
        await self.app(scope, receive, send)


def all_contexts(request: Request) -> Mapping[str, Context]:
    """By name, the default first."""
    contexts: Mapping[str, Context] = request.app.state.galleries
    return contexts


def context_of(request: Request) -> Context:
    contexts = all_contexts(request)
    name = getattr(request.state, "gallery", None)
    if name is None:
        return next(iter(contexts.values()))
    if name not in contexts:
        raise NotFound(f"there is no gallery {name!r:.80}; GET /v1/galleries lists them")
    return contexts[name]


def tenant_of(request: Request) -> str | None:
    """Whose items the caller sees; None: all."""
    tenant: str | None = request.state.caller.tenant
    return tenant


def stored_id(request: Request, id: str) -> str:
    """An id as the gallery holds it: a tenant's own come with its name."""
    return f"{prefix_of(request)}{id}"


def prefix_of(request: Request) -> str:
    tenant = tenant_of(request)
    return "" if tenant is None else f"{tenant}:"


def restricted(request: Request, filter: Filter | None) -> Filter | None:
    """The filter, bound to the caller's tenant."""
    tenant = tenant_of(request)
    if tenant is None:
        return filter
    bound = Eq(FIELD, tenant)
    return bound if filter is None else And((bound, filter))


def service_of(request: Request) -> SearchService:
    return context_of(request).service


def gallery_of(request: Request) -> Gallery:
    """The gallery, with the caller's name for the audit log."""
    address = request.client.host if request.client is not None else "nowhere"
    return service_of(request).acting_as(
        request.state.caller, address=address, request_id=str(request.state.request_id)
    )
