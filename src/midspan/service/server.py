"""From settings to a running server, and its orderly end."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from midspan.service import logs
from midspan.service.app import create_app
from midspan.service.auth import check_exposure, load_tokens
from midspan.service.connections import with_deadline
from midspan.service.context import Context
from midspan.service.encoding import Shelf
from midspan.service.resources import Resources
from midspan.service.search_service import SearchService
from midspan.service.settings import ServerSettings, Settings
from midspan.service.tracing import Tracing

GRACE = 30  # seconds that answers may take after the signal to stop
IDLE = 30  # seconds that an idle connection is kept
BACKLOG = 1024
YOUNG = 10_000  # objects (Python: 700) between two looks for garbage among the newest
SWITCH = 0.0005  # seconds (Python: 0.005) that a search may keep the event loop from going on


class _Server(uvicorn.Server):
    """Event streams never end by themselves: they end when the server does."""

    def __init__(self, config: uvicorn.Config, contexts: Iterable[Context]) -> None:
        super().__init__(config)
        self._contexts = tuple(contexts)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        for context in self._contexts:
            context.hub.close_soon()
        super().handle_exit(sig, frame)


def build(settings: Settings) -> FastAPI:
    """All that can be refused is refused before an encoder is loaded."""
    server = settings.server
    tokens = load_tokens(server.tokens)
    check_exposure(host=server.host, loopback=server.loopback, tokens=tokens)
    tracing = Tracing.from_environment()
    services: list[SearchService] = []
    shelf: Shelf = {}
    resources = Resources(server.limits)
    try:
        for one in settings.galleries:
            services.append(
                SearchService.open(one, resources=resources, shelf=shelf, default=not services)
            )
        return create_app(*services, tokens=tokens, server=server, tracing=tracing)
    except BaseException:
        for service in services:
            service.stop()
        resources.close()
        for service in services:
            service.close()
        raise


def serve(settings: Settings) -> None:
    """Until SIGINT or SIGTERM; then what was acknowledged is finished."""
    close_logs = logs.set_up()  # first of all: encoders have things to say while they are loaded
    try:
        with logs.notices():
            _serve(settings)
    finally:
        close_logs()


def _serve(settings: Settings) -> None:
    app = build(settings)
    config = config_of(app, settings.server)
    sys.setswitchinterval(SWITCH)
    settle_memory()
    logs.event("start", host=settings.server.host, port=settings.server.port)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn sends itself the signal again when all is done: the last lines of the log are
        # still to be written then.
        signal.signal(number, lambda *_: None)
    _Server(config, app.state.galleries.values()).run()
    logs.event("stopped")


def settle_memory() -> None:
    """What is loaded by now stays: looking through it for garbage held answers up by 0.2 s."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 10)


def config_of(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=IDLE,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=65536,
        lifespan="on",
        ws="none",
        http=with_deadline(settings.limits.header_seconds),
        limit_concurrency=settings.limits.connections,
    )
