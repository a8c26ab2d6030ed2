"""The application: the table of routes behind the guard, and what lives as long as it does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from midspan import __version__
from midspan.service.answers import answer, request_id
from midspan.service.auth import Tokens, check_exposure
from midspan.service.context import Context
from midspan.service.core import Core
from midspan.service.errors import error_answer
from midspan.service.events import Hub
from midspan.service.guard import LOCAL_NAMES, Guard, Rule
from midspan.service.idempotency import Idempotency
from midspan.service.jobs import Job
from midspan.service.openapi import describe
from midspan.service.quality import Quality
from midspan.service.routes import TABLE, Route
from midspan.service.routes_gallery import load_page
from midspan.service.settings import Settings
from midspan.service.shortcut import Shortcut
from midspan.service.standing import Standing

OPENAPI = Rule("GET", "/openapi.json", "read", 0)
OVERHEAD = 65536  # of a form around its image


def create_app(core: Core, *, tokens: Tokens) -> FastAPI:
    """Closing the application closes the core."""
    settings = core.settings
    check_exposure(host=settings.host, loopback=settings.loopback, tokens=tokens)
    quality = Quality(core)
    job = Job(core, quality)
    standing = Standing(core, job)
    hub = Hub(core, standing.snapshot)
    context = Context(core, quality, job, hub, standing, load_page())

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        job.start()
        try:
            yield
        finally:
            hub.close()
            job.close()
            core.close()

    app = FastAPI(
        title="midspan",
        version=__version__,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=life,
    )
    app.state.context = context
    for route in TABLE:
        app.add_api_route(
            route.path,
            route.handler,
            methods=[route.method],
            response_model=None,
            name=f"{route.method} {route.path}",
            operation_id=f"{route.method}_{route.handler.__name__}".lower(),
            summary=(route.handler.__doc__ or route.handler.__name__).strip().splitlines()[0],
        )

    async def openapi(request: Request) -> Response:
        return answer(describe(app))

    app.add_api_route(OPENAPI.path, openapi, methods=["GET"], include_in_schema=False)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    # Searches are asked the most, and the way through FastAPI to a handler would be a third of the
    # event loop's work for one: they leave it here. Above they stand for the document.
    searches = [route for route in TABLE if route.path.startswith("/v1/search/")]
    app.add_middleware(
        Shortcut, handlers={(route.method, route.path): route.handler for route in searches}
    )
    app.add_middleware(Idempotency, most=settings.limits.idempotency_keys)
    app.add_middleware(
        Guard,
        rules=(*(_rule(route, settings) for route in TABLE), OPENAPI),
        tokens=tokens,
        hosts=_hosts(settings, tokens),
        metrics=core.metrics,
        hide=lambda: core.hidden,
    )
    return app


def _rule(route: Route, settings: Settings) -> Rule:
    limits = settings.limits
    most = limits.json_bytes if route.takes is not None else 0
    if route.form is not None:
        most = max(most, limits.image_bytes + OVERHEAD)
    return Rule(route.method, route.path, route.role, most)


def _hosts(settings: Settings, tokens: Tokens) -> frozenset[str]:
    """Where tokens are wanted a foreign page gets nowhere; where not, the name must be ours."""
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
