"""From the guard straight to a handler, for the few routes that are asked the most.

What the handler raises goes to the guard, which answers it as it answers all else. A path without
parameters and a handler that takes only the request need nothing of what lies between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class Shortcut:
    def __init__(
        self,
        app: ASGIApp,
        *,
        handlers: Mapping[tuple[str, str], Callable[[Request], Awaitable[Response]]],
    ) -> None:
        """handlers: by method and path."""
        self.app, self._handlers = app, handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = None
        if scope["type"] == "http":
            handler = self._handlers.get((scope["method"], scope["path"]))
        if handler is None:
            await self.app(scope, receive, send)
            return
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)
