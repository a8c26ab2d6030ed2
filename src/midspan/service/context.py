"""From a request to the service behind it."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from midspan.gallery import Gallery
from midspan.service.core import Core
from midspan.service.events import Hub
from midspan.service.jobs import Job
from midspan.service.quality import Quality
from midspan.service.standing import Standing


@dataclass(frozen=True, slots=True)
class Context:
    core: Core
    quality: Quality
    job: Job
    hub: Hub
    standing: Standing
    page: dict[str, tuple[bytes, str]]  # file name → content and type


def context_of(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


def core_of(request: Request) -> Core:
    return context_of(request).core


def gallery_of(request: Request) -> Gallery:
    """The gallery, with the caller's name for the audit trail."""
    address = request.client.host if request.client is not None else "nowhere"
    return core_of(request).acting_as(
        request.state.caller, address=address, request_id=str(request.state.request_id)
    )
