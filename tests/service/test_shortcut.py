"""What makes a search quick changes nothing about who is answered, and how."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from midspan.service import logs
from midspan.service.guard import first_headers
from midspan.service.shortcut import Shortcut


def asked(app: Shortcut, method: str, path: str, kind: str = "http") -> str:
    """The text of the answer."""
    said: list[bytes] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        said.append(message.get("body", b""))

    scope = {"type": kind, "method": method, "path": path, "headers": []}
    asyncio.run(app(scope, receive, send))
    return b"".join(said).decode()


def test_shortcut_handles_only_the_exact_method_and_path() -> None:
    async def long_way(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"long way"})

    async def handler(request: Request) -> Response:
        return PlainTextResponse(f"short way to {request.url.path}")

    app = Shortcut(long_way, handlers={("POST", "/v1/search/vector"): handler})
    assert asked(app, "POST", "/v1/search/vector") == "short way to /v1/search/vector"
    for method, path in (("GET", "/v1/search/vector"), ("POST", "/v1/search/vector/")):
        assert asked(app, method, path) == "long way"
    assert asked(app, "POST", "/v1/search/vector", kind="websocket") == "long way"


def test_duplicated_header_uses_the_first_value() -> None:
    raw = [(b"host", b"a"), (b"x-request-id", b"1"), (b"host", b"b"), (b"odd", b"\xe9")]
    assert first_headers({"headers": raw}) == {"host": "a", "x-request-id": "1", "odd": "é"}


def test_log_line_is_one_json_object_with_its_fields() -> None:
    seen: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    keep, level = Keep(), logs.LOGGER.level
    logs.LOGGER.addHandler(keep)
    logs.LOGGER.setLevel(logging.INFO)
    try:
        logs.event("request", status=200, ms=1.25, who="é\n", none=None)
        logs.event("hidden", level=logging.DEBUG)
        try:
            raise ValueError("a secret")
        except ValueError as error:
            logs.fault("unexpected", error, request_id="7")
    finally:
        logs.LOGGER.removeHandler(keep)
        logs.LOGGER.setLevel(level)
    lines = [logs.JsonLines().format(record) for record in seen]
    assert all("\n" not in line for line in lines)
    first, second = map(json.loads, lines)
    assert first.pop("time").endswith("Z")
    assert first == {
        **{"level": "info", "message": "request"},
        **{"status": 200, "ms": 1.25, "who": "é\n", "none": None},
    }
    assert (second["error"], second["request_id"]) == ("ValueError", "7")
    assert "secret" not in lines[1]
