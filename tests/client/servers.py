"""Two servers for a client: the real service in a thread, and one that misbehaves as told."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midspan.service.guard import Guard, Rule
from midspan.service.routes import TABLE
from midspan.service.settings import Limits

PATIENCE = 60.0


class Watched:
    """The service, with a note of every request; the next answers may be held back."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.seen: list[tuple[str, str]] = []  # method and template, as in the route table
        self.keys: list[str | None] = []
        self.late = 0.0  # seconds that the next write's answer is held back, once it is done
        rules = tuple(Rule(route.method, route.path, "open", 0) for route in TABLE)
        nothing: Any = None
        self._routes = Guard(
            app,
            rules=rules,
            tokens=nothing,
            hosts=frozenset(),
            metrics=nothing,
            hide=nothing,
            limits=Limits(),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        rule = self._routes.rule_for(scope["method"], scope["path"])
        self.seen.append((scope["method"], scope["path"] if rule is None else rule.path))
        key = dict(scope["headers"]).get(b"idempotency-key")
        self.keys.append(None if key is None else key.decode())
        if key is None or not self.late:
            await self.app(scope, receive, send)
            return
        late, self.late = self.late, 0.0
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        await self.app(scope, receive, keep)
        await asyncio.sleep(late)
        for message in messages:
            await send(message)


@contextmanager
def running(app: FastAPI | Watched) -> Iterator[str]:
    """Its url, while it runs in a thread."""
    config = uvicorn.Config(
        app,
        port=0,
        timeout_graceful_shutdown=5,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
    )
    with running_config(uvicorn.Server(config)) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running_config(server: uvicorn.Server) -> Iterator[int]:
    """Its port, while it runs in a thread."""
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(PATIENCE)


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b'{"status": "ok"}'
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    drop: bool = False  # the connection ends without an answer


def refusal(status: int, kind: str, message: str, **headers: str) -> Reply:
    told = {"error": {"type": kind, "message": message, "request_id": "req-1"}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, json.dumps(told).encode(), named)


@dataclass(frozen=True)
class SearchParams:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Stub:
    """Answers as told, one reply for each request; the last one again and again."""

    def __init__(self) -> None:
        self.asked: list[SearchParams] = []
        self.over = threading.Event()
        self.replies: deque[Reply] = deque([Reply()])
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("content-length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = SearchParams(self.command, self.path, headers, self.rfile.read(length))
                stub.asked.append(asked)
                reply = stub.replies[0] if len(stub.replies) == 1 else stub.replies.popleft()
                stub.over.wait(reply.seconds)
                if reply.drop:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that did not wait

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def will(self, *replies: Reply) -> None:
        self.asked.clear()
        self.replies = deque(replies)

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
