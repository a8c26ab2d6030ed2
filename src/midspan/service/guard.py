"""The gate-keeper in front of every route: before a body is read, all that can be refused is.

Request id, host and origin, token and role, size of the body; then headers, metrics and a log
line with each answer.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midspan.service import logs
from midspan.service.auth import Role, Tokens
from midspan.service.errors import (
    Forbidden,
    ServiceError,
    TooLarge,
    TooSlow,
    answer_to,
    error_answer,
)
from midspan.service.intake import INLINE, Intake
from midspan.service.metrics import Metrics
from midspan.service.settings import Limits
from midspan.service.tracing import Tracing

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_RAW = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
ENDLESS = frozenset({"/v1/events"})
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_ids = random.Random().getrandbits  # to tell requests apart, no secret; without a system call
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Rule:
    """What the guard must know of a route."""

    method: str
    path: str  # the template
    role: Role
    most_bytes: int
    tenants: bool = False  # a tenant's token may ask it


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        *,
        rules: tuple[Rule, ...],
        tokens: Tokens,
        hosts: frozenset[str],
        metrics: Metrics,
        hide: Callable[[], Mapping[str, str]],
        limits: Limits,
        tracing: Tracing | None = None,
    ) -> None:
        """hosts: names that may stand in the Host header; empty: any."""
        self.app = app
        self._plain = {(rule.method, rule.path): rule for rule in rules if "{" not in rule.path}
        self._patterns = [
            (rule.method, compile_path(rule.path)[0], rule) for rule in rules if "{" in rule.path
        ]
        self._tokens, self._hosts, self._metrics, self._hide = tokens, hosts, metrics, hide
        self._last_host = ""
        self._body_seconds = limits.body_seconds
        self.intake = Intake(limits)
        self.tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await _Visit(self, scope, receive, send).serve()

    def rule_for(self, method: str, path: str) -> Rule | None:
        method = "GET" if method == "HEAD" else method
        if (rule := self._plain.get((method, path))) is not None:
            return rule
        for rule_method, pattern, rule in self._patterns:
            if rule_method == method and pattern.match(path):
                return rule
        return None

    def check_host(self, headers: Mapping[str, str]) -> None:
        """A page of another site that points its name at this machine is recognised by it."""
        name = headers.get("host", "").lower()
        if self._hosts and name != self._last_host:
            if re.sub(r":\d+$", "", name) not in self._hosts:
                raise Forbidden("the Host header names none of this service's addresses")
            self._last_host = name  # the next one is mostly the same

    def check_site(self, headers: Mapping[str, str]) -> None:
        """Another site's page may not make a browser ask for anything but the page itself."""
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Forbidden("requests from pages of another site are refused")

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Another site's page may not make a browser change anything here."""
        origin = headers.get("origin")
        if origin is not None:
            if origin.partition("://")[2].lower() != headers.get("host", "").lower():
                raise Forbidden("requests from pages of another origin are refused")
        else:
            self.check_site(headers)


def first_headers(scope: Scope) -> dict[str, str]:
    """By name, the first of each; read once, where each look into the raw list takes a microsecond.

    Names come in lower case, as ASGI says.
    """
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in reversed(scope["headers"])
    }


class _Begun:
    """A coroutine that has run up to its first wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Message], first: Any) -> None:
        self._coroutine, self._first = coroutine, first

    def __await__(self) -> Generator[Any, Any, Message]:
        waits_for = self._first
        while True:
            try:
                try:
                    value = yield waits_for
                except BaseException as error:
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(value)
            except StopIteration as done:
                message: Message = done.value
                return message


class _Visit:
    """One request."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self.guard, self.scope, self._receive, self._send = guard, scope, receive, send
        self.headers = first_headers(scope)
        given = self.headers.get("x-request-id")
        self.id = given if given and _REQUEST_ID.fullmatch(given) else f"{_ids(64):016x}"
        self.started = time.perf_counter()
        self.status = 0
        self.read = 0
        self.whole = False  # all of the body came
        self.head = scope["method"] == "HEAD"
        if self.head and scope["path"] not in ENDLESS:  # answered as GET, without the body
            self.scope = {**scope, "method": "GET"}
        self.rule = guard.rule_for(scope["method"], scope["path"])
        self.who = "-"
        tracing = guard.tracing
        name = f"{scope['method']} {self._route()}"
        self.span = None if tracing is None else tracing.begin(name, self.headers)

    async def serve(self) -> None:
        self.guard._metrics.in_flight.inc()
        state = self.scope.setdefault("state", {})
        state["request_id"], state["started"] = self.id, self.started
        try:
            try:
                self._admit(state)
                await self._handle()
            except ClientDisconnect:  # before all of the body came: nobody is there to be answered
                return
            except Exception as error:
                if self.status:  # the answer has begun; the connection is all that can be ended
                    raise
                answer = answer_to(error, request_id=self.id, hide=self.guard._hide())
                if answer is None:
                    logs.fault("unexpected", error, request_id=self.id, route=self._route())
                    answer = error_answer(
                        status=500,
                        kind="Internal",
                        message="this is a fault of the service; its log has more under this id",
                        request_id=self.id,
                    )
                await answer(self.scope, self.receive, self.send)
        finally:
            self._finish()

    def _admit(self, state: dict[str, object]) -> None:
        guard, headers = self.guard, self.headers
        if _CONTROL.search(self.scope["path"]):  # a route's pattern would overlook a last newline
            raise ServiceError("control characters in the path")
        guard.check_host(headers)
        if self.scope["method"] not in SAFE:
            guard.check_origin(headers)
        role: Role = "open" if self.rule is None else self.rule.role
        if self.scope["method"] in SAFE and role != "open":
            guard.check_site(headers)
        caller = guard._tokens.admit(role, headers.get("authorization"))
        if caller.tenant is not None and (self.rule is None or not self.rule.tenants):
            raise Forbidden("a tenant's token may search and read items, no more")
        state["caller"] = caller
        self.who = caller.name
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._most():
            raise self._too_large()

    async def _handle(self) -> None:
        """A large body is received whole first."""
        length = self.headers.get("content-length", "0")
        large = "transfer-encoding" in self.headers or (length.isdigit() and int(length) > INLINE)
        if not large or self.rule is None:
            await self.guard.app(self.scope, self.receive, self.send)
            return
        async with self._deadline():
            body = await self.guard.intake.receive(self._count)
        try:
            async with self.guard.intake.room_for(body.size):
                await self.guard.app(self.scope, body.replay(self._receive), self.send)
        finally:
            body.close()

    def _most(self) -> int:
        return 65536 if self.rule is None else self.rule.most_bytes

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request has more than {self._most():,} bytes")

    async def receive(self) -> Message:
        if self.whole:
            return await self._receive()
        begun = self._count()
        try:
            first = begun.send(None)  # most bodies are there already: they need no clock
        except StopIteration as done:
            message: Message = done.value
            return message
        async with self._deadline():
            return await _Begun(begun, first)

    async def _count(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self.whole = not message.get("more_body", False)
            self.read += len(message.get("body", b""))
            if self.read > self._most() and not self.status:
                raise self._too_large()
        return message

    @asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        left = self.started + self.guard._body_seconds - time.perf_counter()
        try:
            async with asyncio.timeout(left):
                yield
        except TimeoutError:
            raise TooSlow(
                f"the body took more than {self.guard._body_seconds:g} s to arrive",
                headers={"Connection": "close"},
            ) from None

    async def send(self, message: Message) -> None:
        if self.head and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), *_RAW, (b"x-request-id", self.id.encode())]
            if b"cache-control" not in dict(headers):
                headers.append((b"cache-control", b"no-store"))
            message = {**message, "headers": headers}
        await self._send(message)

    def _route(self) -> str:
        return "none" if self.rule is None else self.rule.path

    def _finish(self) -> None:
        seconds = time.perf_counter() - self.started
        metrics = self.guard._metrics
        metrics.in_flight.dec()
        if self._route() == "/metrics":
            intake = self.guard.intake
            metrics.set_uploads(waiting=intake.waiting, memory=intake.memory, disk=intake.disk)
        if self.guard.tracing is not None and self.span is not None:
            self.guard.tracing.end(
                self.span,
                status=self.status or 499,
                http__request__method=self.scope["method"],
                http__route=self._route(),
                midspan__request_id=self.id,
                midspan__gallery=self.scope["state"].get("gallery", ""),
            )
        method = self.scope["method"] if self.rule is not None else "other"
        metrics.answered(
            method=method, route=self._route(), status=self.status or 499, seconds=seconds
        )
        logs.event(
            "request",
            request_id=self.id,
            method=self.scope["method"],
            route=self._route(),
            status=self.status or 499,
            ms=round(1000 * seconds, 2),
            bytes=self.read,
            who=self.who,
            gallery=self.scope["state"].get("gallery", ""),
        )
