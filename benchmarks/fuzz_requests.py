"""What benchmarks/fuzz_service.py asks of a service; each request follows from its seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from tests.service import corpus
from tests.service.test_hostile import JSON_ROUTES

JSON = ("Content-Type", "application/json")
IMAGE_ROUTES = (
    ("POST", "/v1/search/image"),
    ("POST", "/v1/search/compare"),
    ("PUT", "/v1/items/fuzz-image"),
)
IDS = (
    "..", ".", "../../etc/passwd", "/etc/passwd", "..\\..\\x", "a/../../b", "\0", "a\0b", "%00",
    "%2e%2e",
    "\n", "\r\nX-Injected: 1", "x" * 511, "x" * 513, "é" * 300, "\U0001f600", "\u202egnp.exe",
    "~root",
    "$(id)", "`id`", "|id", "'; DROP TABLE items; --", '" OR 1=1', "{{7*7}}", "<script>", "con",
    "-rf",
    "file:///etc/passwd", "http://127.0.0.1:1/", " ", "a ", "*", "?", "#", ";", ":", "kind0/0000",
)  # fmt: skip
PLACES = (
    "/v1/items/{}", "/v1/thumbnails/{}", "/page/{}", "/v1/items?after={}", "/v1/items?filter={}",
    "/v1/items?limit={}", "/v1/thumbnails/kind0%2F0000?size={}", "/v1/upgrade/flips?limit={}",
    "/v1/upgrade/failures?after={}", "/v1/audit?limit={}", "/{}", "/v1/{}", "/v1/upgrade/{}",
)  # fmt: skip
HEADERS = (
    ("Host", "evil.example"), ("Host", ""), ("Host", "127.0.0.1:99999"), ("Host", "[::1"),
    ("Origin", "https://evil.example"), ("Origin", "null"), ("Sec-Fetch-Site", "cross-site"),
    ("Authorization", "Bearer"), ("Authorization", "Bearer \xff\xfe"), ("Authorization",
    "Basic eA=="),
    ("X-Request-ID", "x" * 5000), ("X-Request-ID", "a\tb"), ("Idempotency-Key", "x" * 5000),
    ("Idempotency-Key", "\xff"), ("Idempotency-Key", ""), ("If-None-Match", '"' * 1000),
    ("Content-Type", "application/json; charset=utf-7"), ("Content-Type", ";"), ("Content-Type",
    "\xff"),
    ("Content-Type", "multipart/form-data; boundary=" + "b" * 5000), ("Content-Encoding", "gzip"),
    ("Accept", "*/*" * 1000), ("Range", "bytes=0-1,2-3,99999999999-"), ("Expect", "100-continue"),
    ("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "gzip, chunked"), ("Connection",
    "Upgrade"),
    ("Upgrade", "websocket"), ("Upgrade", "h2c"), ("Content-Length", "-1"), ("Content-Length", "x"),
    ("Content-Length", "99999999999999999999"), ("X-HTTP-Method-Override", "DELETE"), ("Cookie",
    "a=b"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ask:
    kind: str
    method: str
    path: str  # as it goes over the wire
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    raw: bytes | None = None  # all of it, in place of the rest

    @property
    def unfinished(self) -> bool:
        """It may promise more than it sends."""
        return self.kind in ("header", "raw bytes")

    def wire(self, host: str) -> bytes:
        if self.raw is not None:
            return self.raw
        named = {name.lower() for name, _ in self.headers}
        lines = [f"{self.method} {self.path} HTTP/1.1"]
        if "host" not in named:
            lines.append(f"Host: {host}")
        if not named & {"content-length", "transfer-encoding"}:
            lines.append(f"Content-Length: {len(self.body)}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        head = "\r\n".join([*lines, "Connection: close", "", ""])
        return head.encode("latin-1", "replace") + self.body


def asked(seed: int) -> Ask:
    chance = random.Random(seed)
    kinds: tuple[Callable[[int, random.Random], Ask], ...] = (
        *(mutated_image, mutated_image, made_image, mutated_body, made_body, made_body),
        *(hostile_path, mutated_form, hostile_header, noise),
    )
    return kinds[seed % len(kinds)](seed, chance)


def mutated_image(seed: int, chance: random.Random) -> Ask:
    return as_form("mutated image", corpus.mutated(seed), chance)


def made_image(seed: int, chance: random.Random) -> Ask:
    one, other = (corpus.image(chance.choice(corpus.FORMATS)) for _ in range(2))
    cut = chance.randrange(len(one))
    size = [chance.choice([0, 1, 7, 8, 40, 9000, 2**16, 2**24, 2**31 - 1]) for _ in range(2)]
    data = chance.choice(
        [
            one[:cut],
            one + other,
            one[:cut] + other,
            other[:16] + one[16:],
            b"PK\x03\x04" + one,
            one + b"%PDF-1.7\n<script>" + other[:cut],
            corpus.png_that_says(*size),
            corpus.gif_of(chance.randint(1, 90)),
            bytes(chance.choices(range(256), k=chance.randint(0, 3000))),
            one + b"\0" * chance.choice([10, 70_000, 1_048_576]),
        ]
    )
    return as_form("made image", data, chance)


def mutated_body(seed: int, chance: random.Random) -> Ask:
    method, path = chance.choice(JSON_ROUTES)
    return Ask("mutated body", method, path, corpus.mutated_body(seed), (JSON,))


def made_body(seed: int, chance: random.Random) -> Ask:
    """Known fields with values of any kind; one in twenty is huge."""
    names = ("id", "vector", "vectors", "k", "filter", "threshold", "exact", "space", "payload",
    "uri",
             "items", "mode", "order", "sample", "traffic", "max_rate", "reason")  # fmt: skip
    body = {name: value(chance, 0) for name in chance.sample(names, chance.randint(0, 6))}
    if chance.random() < 0.5:
        body |= {"id": "kind0/0000"}
    if chance.random() < 0.3:
        body |= {"vector": [chance.gauss(0, 1) for _ in range(16)]}
    if seed % 20 == 4:
        size = chance.choice([200_000, 900_000, 1_200_000])
        body[chance.choice(names)] = chance.choice(
            ["x" * size, [1] * (size // 3), {str(n): n for n in range(size // 16)}]
        )
    method, path = chance.choice(JSON_ROUTES)
    return Ask("made body", method, path, json.dumps(body).encode(), (JSON,))


def value(chance: random.Random, depth: int) -> object:
    flat: list[object] = [
        *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 1e308, 5e-324, 0.5),
        *("", "x", "\0", "\ud800", "é" * 600, "NaN", float("nan"), float("inf"), "$where"),
        *chance.sample(IDS, 2),
    ]
    draw = chance.random()
    if depth > 3 or draw < 0.5:
        return chance.choice(flat)
    if draw < 0.75:
        return [value(chance, depth + 1) for _ in range(chance.randint(0, 5))]
    keys = (
        "$and",
        "$or",
        "$not",
        "$in",
        "$lt",
        "$gt",
        "$exists",
        "a",
        "price",
        "",
        "\0",
        "id",
        "vector",
    )
    return {key: value(chance, depth + 1) for key in chance.sample(keys, chance.randint(0, 4))}


def hostile_path(seed: int, chance: random.Random) -> Ask:
    id = chance.choice(IDS)
    if chance.random() < 0.3:
        id = chance.choice(IDS) + chance.choice(["", "/", "//", "%", "\\"]) + id
    how = chance.randrange(4)
    shown = quote(id, safe="") if how else quote(id, safe="/.%:;*~|'()<>{}$`\"")
    if how == 1:
        shown = quote(shown)  # twice
    if how == 2:
        shown = "".join(f"%{byte:02x}" for byte in id.encode())
    if chance.random() < 0.1:
        shown += chance.choice(["%", "%f", "%ff", "%c0%ae%c0%ae", "%u002e", "&x=%00", "?", "#"])
    method = chance.choice(("GET", "GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"))
    body = b'{"vector": [1' + b", 1" * 15 + b"]}" if method == "PUT" else b'{"payload": {}}'
    given = (body, (JSON,)) if method in ("PUT", "PATCH") else (b"", ())
    path = chance.choice(PLACES).format(shown)
    return Ask("id or path", method, path, *given)


def mutated_form(seed: int, chance: random.Random) -> Ask:
    _, kind, body = chance.choice(FORMS)
    data = bytearray(body[:100_000] or b"x")
    for _ in range(chance.randint(1, 8)):
        place = chance.randint(0, len(data))
        data[place : place + chance.randint(0, 9)] = bytes(
            chance.choices(b'\r\n-x";=:\0\xff', k=chance.randint(0, 9))
        )
    method, path = chance.choice(IMAGE_ROUTES)
    return Ask("form", method, path, bytes(data), (("Content-Type", kind.decode()),))


def hostile_header(seed: int, chance: random.Random) -> Ask:
    headers = tuple(chance.sample(HEADERS, chance.randint(1, 3)))
    method, path = chance.choice(
        [*JSON_ROUTES, ("GET", "/v1/gallery"), ("GET", "/"), ("GET", "/v1/items")]
    )
    body = corpus.mutated_body(seed) if method != "GET" else b""
    return Ask("header", method, path, body, (JSON, *headers) if method != "GET" else headers)


def noise(seed: int, chance: random.Random) -> Ask:
    """Bytes that are hardly HTTP."""
    whole = Ask("", "POST", "/v1/search/item", b'{"id": "kind0/0000"}', (JSON,)).wire("127.0.0.1")
    data = bytearray(whole)
    for _ in range(chance.randint(1, 20)):
        place = chance.randint(0, len(data))
        data[place : place + chance.randint(0, 4)] = bytes(
            chance.choices(range(256), k=chance.randint(0, 6))
        )
    chunked = (
        b"POST /v1/search/item HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    raw = chance.choice(
        [
            bytes(data),
            bytes(chance.choices(range(256), k=chance.randint(1, 2000))),
            chunked + chance.choice([b"ffffffffffffffff\r\n", b"-1\r\n", b"zz\r\n", b"5\r\nab"]),
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * chance.choice([10, 3000]) + b"\r\n",
            b"GET /"
            + b"a" * chance.choice([100, 70_000])
            + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00" + bytes(chance.choices(range(256), k=500)),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]
    )
    return Ask("raw bytes", "RAW", "", raw=raw)


def as_form(kind: str, data: bytes, chance: random.Random) -> Ask:
    method, path = chance.choices(IMAGE_ROUTES, weights=(6, 1, 3))[0]
    name = chance.choice(["a.png", "../../a.png", "/etc/passwd", "a\0.png", "con", "a" * 300])
    head = f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body = head.encode() + data + b"\r\n--x--\r\n"
    return Ask(kind, method, path, body, (("Content-Type", "multipart/form-data; boundary=x"),))


def whole_corpus() -> Iterator[Ask]:
    for data in corpus.images().values():
        for method, path in IMAGE_ROUTES:
            form = as_form("corpus image", data, random.Random(0))
            yield Ask("corpus image", method, path, form.body, form.headers)
    for data in corpus.bodies().values():
        for method, path in JSON_ROUTES:
            yield Ask("corpus body", method, path, data, (JSON,))
    for _, kind, data in FORMS:
        for method, path in IMAGE_ROUTES:
            yield Ask("corpus form", method, path, data, (("Content-Type", kind.decode()),))


FORMS = tuple(corpus.forms())
