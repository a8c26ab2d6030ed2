"""`Idempotency-Key`: a write that is sent again gets the answer of the first time.

Answers are kept in memory, the last 10,000 of them. After a restart they are gone; what then still
holds is in docs/service.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass, field

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from midspan.service.errors import InvalidRequest

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
NAME = b"idempotency-key"
_KEY = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(slots=True)
class _Kept:
    body: bytes  # digest of the request
    done: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[Message] | None = None  # of the answer; None: it is not to be repeated


class Idempotency:
    def __init__(self, app: ASGIApp, *, most: int) -> None:
        self.app = app
        self._most = most
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = None
        if scope["type"] == "http" and scope["method"] in WRITES:
            key = next((v.decode("latin-1") for k, v in scope["headers"] if k == NAME), None)
        if key is None:
            await self.app(scope, receive, send)
            return
        if not _KEY.fullmatch(key):
            raise InvalidRequest("an Idempotency-Key has 1 to 200 printable ASCII characters")
        body = await _whole(receive)
        if body is None:
            return
        state = scope["state"]
        where = (state.get("gallery", ""), scope["method"], scope["path"])
        name = (state["caller"].name, *where, key)
        digest = hashlib.sha256(body + b"\0" + scope.get("query_string", b"")).digest()
        while (kept := self._kept.get(name)) is not None:
            if kept.body != digest:
                raise InvalidRequest(
                    "this Idempotency-Key was used with another request; give each its own"
                )
            await kept.done.wait()
            if kept.messages is not None:
                await _repeat(kept.messages, send)
                return
            if self._kept.get(name) is kept:
                del self._kept[name]
        self._kept[name] = kept = _Kept(digest)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        try:
            kept.messages = await self._first(body, scope, receive, send)
        finally:
            kept.done.set()
            if kept.messages is None and self._kept.get(name) is kept:
                del self._kept[name]

    async def _first(
        self, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> list[Message] | None:
        """The answer, if it is one to be repeated: what was refused may be done the next time."""
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        messages: list[Message] = []

        async def record(message: Message) -> None:
            messages.append(message)
            await send(message)

        await self.app(scope, again, record)
        return messages if messages and messages[0]["status"] < 300 else None


async def _whole(receive: Receive) -> bytes | None:
    """The body; the guard has capped it. None: the client left."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _repeat(messages: list[Message], send: Send) -> None:
    first = dict(messages[0])
    first["headers"] = list(first.get("headers", []))
    MutableHeaders(raw=first["headers"])["Idempotency-Replayed"] = "true"
    await send(first)
    for message in messages[1:]:
        await send(message)
