"""The application: the table of routes behind the guard, and what lives as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from midspan import __version__
from midspan.errors import MidspanError
from midspan.service import logs
from midspan.service.answers import answer, request_id
from midspan.service.auth import Tokens, check_exposure
from midspan.service.context import Context, GalleryPrefix
from midspan.service.errors import ServiceError, error_answer
from midspan.service.guard import LOCAL_NAMES, Guard, Rule
from midspan.service.idempotency import Idempotency
from midspan.service.openapi import add_routes, describe
from midspan.service.routes import TABLE, Route
from midspan.service.routes_gallery import load_page
from midspan.service.search_service import SearchService
from midspan.service.settings import Limits, ServerSettings
from midspan.service.shortcut import Shortcut
from midspan.service.tracing import Tracing

OPENAPI = Rule("GET", "/openapi.json", "read", 0)
LOCAL = ServerSettings()
WATCH = 10.0  # seconds between two looks at the indexes
OVERHEAD = 65536  # of a form around its image


def create_app(
    *services: SearchService,
    tokens: Tokens,
    server: ServerSettings = LOCAL,
    tracing: Tracing | None = None,
) -> FastAPI:
    """Over one gallery or several with the same resources; the first is the default.

    Closing the application closes the services and their resources.
    """
    check_exposure(host=server.host, loopback=server.loopback, tokens=tokens)
    resources = services[0].resources
    assert all(service.resources is resources for service in services)
    limits = resources.limits
    contexts = {service.name: Context.of(service) for service in services}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for context in contexts.values():
            context.worker.start()
        watch = asyncio.create_task(_watch_indexes(list(contexts.values())))
        try:
            yield
        finally:
            watch.cancel()
            for context in contexts.values():
                context.hub.close()
                context.jobs.close()
                context.worker.close()
            close_all(services)
            if tracing is not None:
                tracing.close()

    app = FastAPI(
        title="midspan",
        version=__version__,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.galleries = contexts
    app.state.page = load_page()
    add_routes(app)

    async def openapi(request: Request) -> Response:
        return answer(describe(app))

    app.add_api_route(OPENAPI.path, openapi, methods=["GET"], include_in_schema=False)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    # Searches are asked the most, and the way through FastAPI to a handler would be a third of the
    # event loop's work for one: they leave it here. Above they stand for the document.
    searches = [route for route in TABLE if route.tag == "search"]
    app.add_middleware(
        Shortcut, handlers={(route.method, route.path): route.handler for route in searches}
    )
    app.add_middleware(Idempotency, most=limits.idempotency_keys)
    app.add_middleware(
        Guard,
        rules=(*(_rule(route, limits) for route in TABLE), OPENAPI),
        tokens=tokens,
        hosts=_hosts(server, tokens),
        metrics=resources.metrics,
        hide=lambda: {
            secret: shown for service in services for secret, shown in service.hidden.items()
        },
        limits=limits,
        tracing=tracing,
    )
    app.add_middleware(GalleryPrefix)
    return app


async def _watch_indexes(contexts: Sequence[Context]) -> None:
    """So that the age of an index is known to the first who asks."""
    while True:
        for context in contexts:
            try:
                await context.service.scanning.run(context.status.observe_indexes)
            except (MidspanError, ServiceError) as error:  # the next look may be answered
                logs.event("index not looked at", level=10, error=str(error))
        await asyncio.sleep(WATCH)


def close_all(services: Sequence[SearchService]) -> None:
    """First what works for them, then the galleries."""
    for service in services:
        service.stop()
    services[0].resources.close()
    for service in services:
        service.close()


def _rule(route: Route, limits: Limits) -> Rule:
    most = limits.json_bytes if route.takes is not None else 0
    if route.form is not None:
        most = max(most, limits.image_bytes + OVERHEAD)
    return Rule(route.method, route.path, route.role, most, route.tenants)


def _hosts(settings: ServerSettings, tokens: Tokens) -> frozenset[str]:
    """With tokens a foreign page gets nowhere; without, the name must be ours."""
    if settings.hosts:
        return frozenset({*settings.hosts, settings.host}) | LOCAL_NAMES
    return frozenset() if tokens else LOCAL_NAMES | {settings.host}


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kinds = {404: "NotFound", 405: "MethodNotAllowed"}
    return error_answer(
        status=error.status_code,
        kind=kinds.get(error.status_code, "BadRequest"),
        message=str(error.detail),
        request_id=request_id(request),
        headers=error.headers,
    )


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5]]
    return error_answer(
        status=422,
        kind="InvalidRequest",
        message="; ".join(lines),
        request_id=request_id(request),
    )
