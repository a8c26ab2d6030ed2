"""From settings to a running server, and its orderly end."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from midspan.service import logs
from midspan.service.app import create_app
from midspan.service.auth import check_exposure, load_tokens
from midspan.service.context import Context
from midspan.service.core import Core
from midspan.service.settings import Settings

GRACE = 30  # seconds that answers may take after the signal to stop
IDLE = 30  # seconds that an idle connection is kept
BACKLOG = 1024
SWITCH = 0.0005  # seconds (Python: 0.005) that a search may keep the event loop from going on


class _Server(uvicorn.Server):
    """Event streams never end by themselves: they are told when the server is."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._context.hub.close_soon()
        super().handle_exit(sig, frame)


def build(settings: Settings) -> FastAPI:
    """All that can be refused is refused before an encoder is loaded."""
    tokens = load_tokens(settings.tokens)
    check_exposure(host=settings.host, loopback=settings.loopback, tokens=tokens)
    core = Core.open(settings)
    try:
        return create_app(core, tokens=tokens)
    except BaseException:
        core.close()
        raise


def serve(settings: Settings) -> None:
    """Until SIGINT or SIGTERM; then what was acknowledged is finished."""
    app = build(settings)
    close_logs = logs.set_up()
    config = uvicorn.Config(
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
    )
    sys.setswitchinterval(SWITCH)
    logs.event("start", host=settings.host, port=settings.port)
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn sends itself the signal again when all is done: the last lines of the log are
        # still to be written then.
        signal.signal(number, lambda *_: None)
    try:
        _Server(config, app.state.context).run()
        logs.event("stopped")
    finally:
        close_logs()
