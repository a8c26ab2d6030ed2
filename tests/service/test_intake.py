from __future__ import annotations

import asyncio
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from midspan.service.errors import Overloaded
from midspan.service.intake import Intake
from midspan.service.server import _Server, config_of
from midspan.service.settings import Limits, ServerSettings
from tests.client.servers import running_config
from tests.service.conftest import Serve
from tests.service.shop import QUICK, Shop, encoded, make_gallery, open_service

MIB = 2**20


def parts_of(*parts: bytes) -> Any:
    left = list(parts)

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


async def read_back(body: Any) -> bytes:
    receive, received = body.replay(None), b""
    while (message := await receive())["more_body"]:
        received += message["body"]
    return received


@pytest.mark.parametrize("room", [MIB, 0])
def test_received_body_is_replayed_from_memory_and_from_disk(room: int) -> None:
    async def check() -> None:
        intake = Intake(Limits(waiting_memory=room))
        body = await intake.receive(parts_of(b"a" * 1000, b"b" * 200_000, b"c"))
        assert (intake.waiting, body.size) == (0, 201_001)
        assert (intake.memory, intake.disk) == ((201_001, 0) if room else (0, 201_001))
        assert await read_back(body) == b"a" * 1000 + b"b" * 200_000 + b"c"
        body.close()
        assert (intake.memory, intake.disk) == (0, 0)

    asyncio.run(check())


def test_large_body_is_spooled_to_disk_up_to_a_limit() -> None:
    async def check() -> None:
        intake = Intake(Limits(waiting_disk=3 * MIB))
        body = await intake.receive(parts_of(b"x" * MIB, b"y" * MIB))
        assert (intake.memory, intake.disk) == (0, 2 * MIB)
        with pytest.raises(Overloaded, match="disk"):
            await intake.receive(parts_of(b"x" * MIB, b"y" * MIB))
        assert intake.disk == 2 * MIB, "what was refused left nothing behind"
        body.close()
        assert intake.disk == 0

    asyncio.run(check())


def test_bodies_wait_in_order_for_body_memory() -> None:
    async def check() -> None:
        intake = Intake(Limits(body_memory=100))
        order = list[str]()

        async def work(name: str, size: int) -> None:
            async with intake.room_for(size):
                order.append(name)
                await asyncio.sleep(0)
                order.append(name)

        await asyncio.gather(work("large", 80), work("next", 60), work("small", 30))
        assert order[:2] == ["large", "large"], "nobody else fits"
        assert intake.working == 0
        waiting = asyncio.ensure_future(work("never", 100))
        async with intake.room_for(50):
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert (intake.working, len(intake._queue)) == (0, 0)

    asyncio.run(check())


def test_uploads_beyond_the_limit_are_refused(serve: Serve) -> None:
    client = serve(limits=Limits(uploads=0, decode_workers=1))
    answer = client.post("/v1/search/image", files={"file": encoded(1) + b" " * 70_000})
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Overloaded")
    assert answer.headers["retry-after"] == "5"


def talk(address: tuple[str, int], *parts: bytes) -> bytes:
    """What is answered until the other side closes."""
    with socket.create_connection(address, timeout=20) as wire:
        for part in parts:
            wire.sendall(part)
        received = b""
        while more := wire.recv(65536):
            received += more
        return received


def test_slow_headers_and_bodies_time_out(shop: Shop, tmp_path: Path) -> None:
    from dataclasses import replace

    from midspan.service.app import create_app
    from midspan.service.auth import Tokens

    limits = replace(QUICK, header_seconds=0.3, body_seconds=0.5)
    place = make_gallery(shop, tmp_path / "g.midspan", count=12)
    server = ServerSettings(limits=limits, port=0)
    app = create_app(open_service(shop, place, limits=limits), tokens=Tokens({}))
    with running_config(_Server(config_of(app, server), app.state.galleries.values())) as port:
        address = ("127.0.0.1", port)
        started = time.monotonic()
        assert talk(address) == b""
        assert talk(address, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ") == b""
        head = b"POST /v1/search/item HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{"
        assert b" 408 " in talk(address, head).split(b"\r\n")[0]
        large = head.replace(b"50", b"500000").replace(b"item", b"vector")
        assert b'"TooSlow"' in talk(address, large, b" " * 100_000)
        assert time.monotonic() - started < 15


def test_part_written_to_disk_is_released_from_memory() -> None:
    parts, held = [b"x" * MIB, b"y"], list[int]()

    async def receive() -> Message:
        held.append(sys.getrefcount(parts[0]))
        part = parts[len(held) - 1]
        return {"type": "http.request", "body": part, "more_body": len(held) < 2}

    async def check() -> None:
        (await Intake(Limits()).receive(receive)).close()

    asyncio.run(check())
    assert held[1] == held[0], "500 slow clients would hold 120 MB"
