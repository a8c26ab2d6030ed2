from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from midspan.service import logs
from midspan.service.settings import Limits
from tests.service.conftest import Serve
from tests.service.shop import QUICK, encoded, name
from tests.service.test_routes_search import service_of, vector_of


def test_answers_have_the_security_headers(shared: TestClient) -> None:
    for path in ("/", "/v1/gallery", "/nothing", "/v1/items/nobody", "/v1/upgrade"):
        headers = shared.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-request-id"]
        assert "server" not in headers


def test_request_id_of_the_client_is_kept_if_harmless(shared: TestClient) -> None:
    good = shared.get("/healthz", headers={"x-request-id": "abc-1.2_3"})
    assert good.headers["x-request-id"] == "abc-1.2_3"
    for evil in ("a b", "x" * 65, '"}{', "é"):
        answer = shared.get("/healthz", headers=[(b"x-request-id", evil.encode())])
        assert answer.headers["x-request-id"] != evil


def test_body_beyond_the_limit_is_413_by_length_and_while_streaming(serve: Serve) -> None:
    client = serve(limits=Limits(json_bytes=1000, image_bytes=2000, decode_workers=1))
    told = client.post("/v1/search/vector", content=b" " * 1001)
    assert (told.status_code, told.json()["error"]["type"]) == (413, "TooLarge")

    def endless() -> Any:
        for _ in range(1000):
            yield b" " * 100

    streamed = client.post(
        "/v1/search/vector", content=endless(), headers={"content-type": "application/json"}
    )
    assert streamed.status_code == 413
    large = client.post("/v1/search/image", files={"file": b"x" * 3000})
    assert large.status_code == 413
    assert client.request("DELETE", "/v1/items/x", content=b"body").status_code == 413
    assert client.post("/nothing", content=b" " * 70_000).status_code == 413


def test_disconnect_before_the_whole_body_is_not_logged_as_an_error(
    shared: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    parts = [
        {"type": "http.request", "body": b'{"id": ', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/search/item",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8080"), (b"content-length", b"100")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8080),
        "scheme": "http",
    }
    caplog.set_level(logging.INFO, logger="midspan.service")
    asyncio.run(shared.app(scope, receive, send))  # type: ignore[arg-type]
    assert sent == []
    [line] = [record for record in caplog.records if record.getMessage() == "request"]
    assert line.__dict__["fields"]["status"] == 499
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_unexpected_error_is_500_without_internals(
    shared: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("the secret is 42")

    status = shared.app.state.galleries["default"].status  # type: ignore[attr-defined]
    monkeypatch.setattr(type(status), "upgrade", lambda self: broken())
    with caplog.at_level(logging.ERROR, logger="midspan.service"):
        answer = shared.get("/v1/upgrade", headers={"x-request-id": "fault-1"})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "Internal"
    assert "42" not in answer.text
    assert "RuntimeError" not in answer.text
    assert [record.fields["request_id"] for record in caplog.records] == ["fault-1"]  # type: ignore[attr-defined]


def test_error_messages_do_not_contain_server_paths(shared: TestClient) -> None:
    service = service_of(shared)
    answer = shared.get("/v1/items/nobody")
    assert answer.json()["error"] == {
        "type": "UnknownId",
        "message": "'nobody' is not in the gallery",
        "request_id": answer.headers["x-request-id"],
    }
    assert service.gallery.location not in shared.post("/v1/upgrade/pause").text


def test_logs_are_json_without_vectors_payloads_or_tokens(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve()
    vector = vector_of(client, 1)
    with caplog.at_level(logging.INFO, logger="midspan.service"):
        client.post("/v1/search/vector", json={"vector": vector, "filter": {"secret": "value"}})
        client.put("/v1/items/x", json={"vector": vector, "payload": {"secret": "value"}})
        client.get("/v1/gallery", headers={"authorization": "Bearer hidden-token-hidden"})
    lines = [logs.JsonLines().format(record) for record in caplog.records]
    parsed = [json.loads(line) for line in lines]
    requests = [line for line in parsed if line["message"] == "request"]
    assert [line["route"] for line in requests] == [
        "/v1/search/vector",
        "/v1/items/{id:path}",
        "/v1/gallery",
    ]
    assert all(line["status"] == 200 and line["ms"] > 0 for line in requests)
    text = "\n".join(lines)
    for hidden in ("value", "hidden-token", str(vector[0])[:8]):
        assert hidden not in text


def test_logs_go_through_a_thread_and_the_last_line_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    before = {name: logging.getLogger(name).handlers for name in ("midspan.service", "uvicorn")}
    close = logs.set_up()
    try:
        logs.event("hello", answer=42)
        try:
            raise ValueError("not shown")
        except ValueError as error:
            logs.fault("oops", error)
    finally:
        close()
        for name, handlers in before.items():
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = handlers, True
        logging.getLogger("uvicorn.access").disabled = False
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["message"], first["answer"]) == ("hello", 42)
    assert (second["error"], "not shown" in out.getvalue()) == ("ValueError", False)
    assert "test_guard.py" in second["where"][0]


def test_full_queue_is_503_with_retry_after(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve(limits=Limits(waiting=0, search_threads=1, decode_workers=1))
    service = service_of(client)
    service.reading.depth = 1  # its one thread is busy
    for answer in (
        client.get("/v1/gallery"),
        client.post("/v1/search/item", json={"id": name(1)}),
    ):
        assert answer.status_code == 503
        assert answer.json()["error"]["type"] == "Overloaded"
        assert int(answer.headers["retry-after"]) >= 1
    searched = client.post("/v1/search/vector", json={"vector": vector_of(client, 1)})
    assert searched.status_code == 503
    assert client.get("/healthz").status_code == 200
    service.reading.depth = 0
    assert client.get("/v1/gallery").status_code == 200


def test_repeated_idempotency_key_returns_the_first_answer(serve: Serve) -> None:
    client = serve()
    body = {"items": [{"id": "once", "vector": vector_of(client, 1)}], "mode": "add"}
    headers = {"idempotency-key": "k1"}
    first = client.post("/v1/items", json=body, headers=headers)
    again = client.post("/v1/items", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert client.post("/v1/items", json=body).status_code == 422, "without the key it is doubled"
    other = {"items": [{"id": "twice", "vector": vector_of(client, 1)}]}
    reused = client.post("/v1/items", json=other, headers=headers)
    assert reused.status_code == 422
    assert "another request" in reused.json()["error"]["message"]
    refused = {"idempotency-key": "k2"}
    assert client.post("/v1/upgrade/pause", headers=refused).status_code == 409
    client.post("/v1/upgrade/start", json={"order": "random", "sample": 0})
    assert client.post("/v1/upgrade/pause", headers=refused).status_code == 200, (
        "a refusal is not kept"
    )
    assert (
        client.post("/v1/items", json=other, headers={"idempotency-key": "x" * 201}).status_code
        == 422
    )
    put = {"files": {"file": encoded(4)}, "headers": {"idempotency-key": "k3"}}
    assert client.put("/v1/items/img", **put).status_code == 200  # type: ignore[arg-type]


def test_idempotency_keys_beyond_the_limit_are_forgotten(serve: Serve) -> None:
    from dataclasses import replace

    client = serve(limits=replace(QUICK, idempotency_keys=2))
    for key in ("a", "b", "c"):
        client.delete("/v1/items/x", headers={"idempotency-key": key})
    again = [client.delete("/v1/items/x", headers={"idempotency-key": key}) for key in "cba"]
    assert [("idempotency-replayed" in answer.headers) for answer in again] == [True, True, False]


def test_event_stream_sends_changes_and_ends_when_the_hub_closes(serve: Serve) -> None:
    client = serve()
    context = client.app.state.galleries["default"]  # type: ignore[attr-defined]

    async def listen() -> list[bytes]:
        seen: list[bytes] = []
        stream: AsyncIterator[bytes] = context.hub.stream()
        async for message in stream:
            seen.append(message)
            if len(seen) == 3:  # the greeting: retry, gallery, upgrade
                await asyncio.to_thread(context.service.gallery.delete, [name(1)])
            if b'"items":59' in message:
                context.hub.close()
        return seen

    seen = asyncio.run(asyncio.wait_for(listen(), 30))
    assert seen[0] == b"retry: 2000\n\n"
    names = [message.split(b"\n")[0] for message in seen[1:]]
    assert names[:2] == [b"event: gallery", b"event: upgrade"]
    assert b'"items":60' in seen[1]
    assert client.get("/v1/events").status_code == 503, "closing: no new streams"


def test_event_stream_sends_own_changes_immediately(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midspan.service.events.LOOK", 20.0)
    client = serve()
    context = client.app.state.galleries["default"]  # type: ignore[attr-defined]

    async def listen() -> float:
        greeted: float | None = None
        async for message in context.hub.stream():
            if greeted is None and message.startswith(b"event: upgrade"):
                greeted = time.monotonic()
                asyncio.get_running_loop().call_later(0.5, start)
            if b'"phase":"running"' in message:
                context.hub.close()
                assert greeted is not None
                return time.monotonic() - greeted
        raise AssertionError("the stream ended before the upgrade ran")

    def start() -> None:
        body = {"order": "random", "sample": 0}
        starting.append(asyncio.create_task(asyncio.to_thread(_post, client, body)))

    starting: list[asyncio.Task[int]] = []
    assert asyncio.run(asyncio.wait_for(listen(), 60)) < 15


def _post(client: TestClient, body: dict[str, Any]) -> int:
    return client.post("/v1/upgrade/start", json=body).status_code


def test_event_stream_of_a_slow_listener_drops_the_oldest(serve: Serve) -> None:
    from midspan.service.events import BEHIND, _put

    async def fill() -> None:
        listener: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=BEHIND)
        for number in range(BEHIND + 5):
            _put(listener, b"%d" % number)
        assert listener.qsize() == BEHIND
        assert listener.get_nowait() == b"5"

    asyncio.run(fill())


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_site_get_is_forbidden(shared: TestClient, site: str) -> None:
    headers = {"Sec-Fetch-Site": site}
    for path in ("/v1/gallery/verify", "/v1/gallery", "/metrics", "/v1/items", "/openapi.json"):
        assert (path, shared.get(path, headers=headers).status_code) == (path, 403)
    assert shared.get("/", headers=headers).status_code == 200, "a link to the page works"
    assert shared.get("/v1/gallery", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_head_answers_as_get_without_the_body(shared: TestClient) -> None:
    for path in ("/", "/healthz", "/v1/gallery", "/page/main.js"):
        plain, head = shared.get(path), shared.head(path)
        assert (path, head.status_code, head.content) == (path, 200, b"")
        assert head.headers["content-type"] == plain.headers["content-type"]
    assert shared.head("/v1/events").status_code == 405
    assert shared.head("/v1/items/nobody").status_code == 404


def test_library_warnings_are_json_log_lines(capfd: pytest.CaptureFixture[str]) -> None:
    import json
    import warnings

    from midspan.service import logs

    kept = {
        name: (logger.handlers, logger.propagate, logger.level)
        for name in ("midspan.service", "uvicorn", "py.warnings")
        for logger in [logging.getLogger(name)]
    }
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)  # a test before may have left it on
        close = logs.set_up()
        try:
            warnings.warn("overflow in matmul", RuntimeWarning, stacklevel=1)
        finally:
            close()
            logging.captureWarnings(False)
            for name, (handlers, propagate, level) in kept.items():
                logger = logging.getLogger(name)
                logger.handlers, logger.propagate = handlers, propagate
                logger.setLevel(level)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert any("overflow in matmul" in line["message"] for line in lines)
