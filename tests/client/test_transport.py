"""Tries, waits, errors and the token, against a server that misbehaves."""

from __future__ import annotations

import logging
import socket
import traceback
from collections.abc import Iterator
from email.utils import formatdate
from time import time

import pytest

from midspan import errors
from midspan.client import Client
from midspan.client.transport import (
    ERROR_TYPES,
    FIRST_WAIT,
    LONGEST_BACK_OFF,
    back_off,
    retry_after,
)
from midspan.errors import (
    ConfigError,
    FormatError,
    ItemError,
    MidspanError,
    RequestError,
    UnknownId,
    Unreachable,
)
from tests.client.servers import Reply, Stub, refusal

TOKEN = "a-token-that-nobody-should-see"
BUSY = refusal(503, "Overloaded", "too many requests are waiting")


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr("midspan.client.transport.sleep", waits.append)
    return waits


@pytest.fixture
def client(stub: Stub) -> Iterator[Client]:
    with Client(stub.url, TOKEN, retries=3, timeout=10) as client:
        yield client


@pytest.mark.parametrize("bad", [Reply(502), BUSY, Reply(504), Reply(drop=True)])
def test_transient_failures_are_retried(
    client: Client, stub: Stub, slept: list[float], bad: Reply
) -> None:
    stub.will(bad, bad, Reply())
    assert client.health() is True
    assert len(stub.asked) == 3
    assert len(slept) == 2
    assert 0.5 * FIRST_WAIT <= slept[0] <= FIRST_WAIT <= slept[1] <= 2 * FIRST_WAIT


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 429, 500, 501])
def test_other_error_statuses_are_not_retried(
    client: Client, stub: Stub, slept: list[float], status: int
) -> None:
    stub.will(refusal(status, "Whatever", "no"))
    with pytest.raises(RequestError, match=r"^no$") as refused:
        client.health()
    assert (len(stub.asked), slept) == (1, [])
    assert (refused.value.status, refused.value.kind) == (status, "Whatever")
    assert refused.value.request_id == "req-1"


def test_after_the_last_retry_the_services_error_is_raised(
    client: Client, stub: Stub, slept: list[float]
) -> None:
    stub.will(BUSY)
    with pytest.raises(RequestError, match="too many requests") as refused:
        client.health()
    assert (len(stub.asked), len(slept), refused.value.kind) == (4, 3, "Overloaded")


def test_retry_after_is_respected(client: Client, stub: Stub, slept: list[float]) -> None:
    stub.will(refusal(503, "Overloaded", "busy", Retry_After="7"), Reply())
    assert client.health()
    assert 7 < slept[0] <= 7 + FIRST_WAIT
    stub.will(refusal(503, "Overloaded", "come back tomorrow", Retry_After="86400"), Reply())
    with pytest.raises(RequestError, match="tomorrow"):
        client.health()
    assert (len(stub.asked), len(slept)) == (1, 1), "asked again before it was allowed"


def test_retry_after_parses_seconds_and_dates() -> None:
    assert retry_after(None) is None
    assert retry_after("3") == 3.0
    assert retry_after("soon") is None
    assert retry_after("-1") is None
    assert retry_after(formatdate(time() - 100, usegmt=True)) == 0.0
    ahead = retry_after(formatdate(time() + 100, usegmt=True))
    assert ahead is not None
    assert 90 < ahead <= 100


def test_back_off_grows_to_a_ceiling_and_is_spread() -> None:
    assert max(back_off(50) for _ in range(100)) <= LONGEST_BACK_OFF
    assert min(back_off(50) for _ in range(100)) >= LONGEST_BACK_OFF / 2
    assert len({back_off(3) for _ in range(20)}) > 10
    assert min(back_off(5) for _ in range(50)) >= max(back_off(4) for _ in range(50))


def test_refused_connection_raises_unreachable_after_retries(slept: list[float]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}", TOKEN, retries=2) as client:
        with pytest.raises(Unreachable, match=r"did not answer GET /healthz .*tries: 3") as gone:
            client.health()
        assert client.ready() is False
    assert len(slept) == 2, "ready is asked once"
    assert isinstance(gone.value, MidspanError)
    assert gone.value.status is None


def test_timeouts_are_retried(stub: Stub, slept: list[float]) -> None:
    with Client(stub.url, timeout=0.8, retries=1) as client:
        stub.will(Reply(seconds=30.0), Reply())
        assert client.health()
        assert len(stub.asked) == 2
        stub.will(Reply(seconds=30.0))
        with pytest.raises(Unreachable, match="ReadTimeout"):
            client.health()


def test_retries_of_a_write_share_one_idempotency_key_and_reads_have_none(
    client: Client, stub: Stub, slept: list[float]
) -> None:
    done = Reply(body=b'{"deleted": 1}')
    stub.will(Reply(drop=True), BUSY, done)
    assert client.delete("chair") is True
    first = [asked.headers["idempotency-key"] for asked in stub.asked]
    assert len(set(first)) == 1 and len(first) == 3  # noqa: PT018
    stub.will(done)
    client.delete("chair")
    assert stub.asked[0].headers["idempotency-key"] not in first
    stub.will(Reply(body=b'{"results": [], "took_ms": 1.0, "request_id": "r"}'))
    assert client.search(id="chair") == ()
    assert "idempotency-key" not in stub.asked[0].headers


def test_every_retry_sends_the_whole_form(client: Client, stub: Stub, slept: list[float]) -> None:
    stub.will(BUSY, Reply(body=b'{"results": [], "took_ms": 1.0, "request_id": "r"}'))
    client.search(image=b"\x89PNG-bytes", k=3, filter={"a": 1})
    bodies = [asked.body for asked in stub.asked]
    assert [b"\x89PNG-bytes" in body for body in bodies] == [True, True]
    assert b'name="filter"\r\n\r\n{"a": 1}' in bodies[1]
    assert b'name="k"\r\n\r\n3' in bodies[1]
    assert b"threshold" not in bodies[1], "what is not given is not sent"


def test_service_errors_raise_the_same_error_classes(client: Client, stub: Stub) -> None:
    stub.will(refusal(404, "UnknownId", "'chair' is not in the gallery"))
    with pytest.raises(UnknownId, match="'chair' is not in the gallery") as unknown:
        client.get("chair")
    assert str(unknown.value) == "'chair' is not in the gallery"
    assert "req-1" in unknown.value.__notes__[0]
    known = {
        kind.__name__
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, MidspanError)
    }
    own = {"MissingDependency", "RequestError", "Unreachable", "Interrupted"}
    own |= {"ProcessLost", "ClusterError"}  # of commands, never of a service
    assert set(ERROR_TYPES) == known - own, "a new error: may a service tell it?"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(404, b"<h1>nginx</h1>"), Reply(500, b"[]"), Reply(400, b'{"error": "x"}'),
        Reply(500, b'{"error": {"type": "x"}}'), Reply(401, b""),
    ],
)  # fmt: skip
def test_error_bodies_of_other_servers_raise_request_error(
    client: Client, stub: Stub, reply: Reply
) -> None:
    stub.will(reply)
    with pytest.raises(RequestError, match="not as midspan does") as refused:
        client.info()
    assert refused.value.status == reply.status


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>", "no JSON"), (b"[]", "for GalleryInfo expected"),
        (b"{}", "has no 'location_kind'"),
        (b'{"location_kind": 5}', "for GalleryInfo.location_kind expected str, got int"),
    ],
)  # fmt: skip
def test_malformed_answers_raise_format_error(
    client: Client, stub: Stub, body: bytes, says: str
) -> None:
    stub.will(Reply(body=body))
    with pytest.raises(FormatError, match=says):
        client.info()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_refused(client: Client, stub: Stub, status: int) -> None:
    stub.will(Reply(status, headers={"Location": f"{stub.url}/elsewhere"}), Reply())
    with pytest.raises(RequestError, match="redirect"):
        client.health()
    assert [asked.path for asked in stub.asked] == ["/healthz"]


def test_the_token_is_sent_and_never_shown(
    stub: Stub, caplog: pytest.LogCaptureFixture, slept: list[float]
) -> None:
    caplog.set_level(logging.DEBUG)
    shown = []
    with Client(stub.url, TOKEN, retries=1, timeout=0.8) as client:
        assert client.health()
        assert stub.asked[0].headers["authorization"] == f"Bearer {TOKEN}"
        shown += [repr(client), str(client), repr(client.upgrade), repr(client._transport)]
        echo = f"you sent Bearer {TOKEN}"
        for reply in (
            refusal(401, "Unauthorized", echo), refusal(404, "UnknownId", echo),
            Reply(drop=True), Reply(seconds=30.0), Reply(body=b"no JSON"),
            Reply(302, headers={"Location": "http://elsewhere/"}),
        ):  # fmt: skip
            stub.will(reply)
            with pytest.raises(MidspanError) as error:
                client.health()
            shown += traceback.format_exception(error.value)
            shown += [repr(error.value), *map(str, error.value.args)]
    assert any("you sent Bearer [token]" in text for text in shown)
    assert not [text for text in [*shown, caplog.text] if TOKEN in text]


def test_token_over_plain_http_is_refused_except_on_loopback() -> None:
    for url in ("http://shop.example", "http://192.168.1.5:8080", "http://localhost.example"):
        with pytest.raises(ConfigError, match="not encrypted") as refused:
            Client(url, TOKEN)
        assert TOKEN not in str(refused.value)
        Client(url).close()
        Client(url, TOKEN, allow_http=True).close()
    for url in ("https://shop.example", "http://localhost:1", "http://127.0.0.9", "http://[::1]:8"):
        Client(url, TOKEN).close()


@pytest.mark.parametrize(
    "url",
    [
        "shop.example", "ftp://shop.example", "https://", "http://[::1", "https://h:port",
        "https://h/?token=x", "https://h/#x", "file:///etc/passwd", "https://me:secret@h",
    ],
)  # fmt: skip
def test_invalid_urls_are_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Client(url)
    assert "secret" not in str(refused.value)


def test_invalid_tokens_and_timeouts_are_refused() -> None:
    for token in ("", "two\r\nlines", "ключ"):
        with pytest.raises(ConfigError, match="the token is empty or"):
            Client("https://h", token)
    for settings in ({"timeout": 0}, {"retries": -1}, {"long_timeout": -1}, {"longest_wait": -1}):
        with pytest.raises(ConfigError, match="time-outs"):
            Client("https://h", **settings)  # type: ignore[arg-type]


def test_plain_http_ignores_proxy_settings(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with Client(stub.url, TOKEN, retries=0) as client:
        assert client.health()


@pytest.mark.parametrize(
    ("id", "path"),
    [
        ("a/b", "/v1/items/a%2Fb"), ("..", "/v1/items/%2E%2E"), (".", "/v1/items/%2E"),
        ("../../audit", "/v1/items/..%2F..%2Faudit"), ("a?b#c%2F", "/v1/items/a%3Fb%23c%252F"),
        ("ü ", "/v1/items/%C3%BC%20"), ("a.b", "/v1/items/a.b"),
    ],
)  # fmt: skip
def test_an_id_stays_one_segment_of_the_path(
    client: Client, stub: Stub, id: str, path: str
) -> None:
    stub.will(Reply(body=b'{"deleted": 0}'))
    assert client.delete(id) is False
    assert stub.asked[0].path == path


@pytest.mark.parametrize("id", ["", "\ud800", 5, None])
def test_invalid_ids_are_refused_before_sending(client: Client, stub: Stub, id: str) -> None:
    stub.will(Reply())
    with pytest.raises(ItemError):
        client.get(id)
    assert stub.asked == []
