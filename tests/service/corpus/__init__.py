"""Hostile input, made by code: broken, lying, hungry and many-faced images; JSON and forms."""

from __future__ import annotations

import functools
import io
import json
import random
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

PNG = b"\x89PNG\r\n\x1a\n"
PIXELS = np.random.default_rng(5).integers(0, 255, (24, 30, 3), dtype=np.uint8)
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")


@functools.cache
def image(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(PIXELS).save(out, kind)
    return out.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + name + data + struct.pack("!I", zlib.crc32(name + data))


def png(width: int, height: int, data: bytes, *more: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack("!IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return PNG + head + b"".join(more) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def png_that_says(width: int, height: int) -> bytes:
    """A size that its few bytes do not hold."""
    return png(width, height, zlib.compress(b"\0" * 100))


def hungry_png(side: int = 13_000) -> bytes:
    """All zeros: 169 million pixels in 164 kB."""
    compressor = zlib.compressobj(9)
    row = b"\0" * (side + 1)
    data = b"".join(compressor.compress(row * 100) for _ in range(side // 100))
    return png(side, side, data + compressor.flush())


def gif_of(frames: int) -> bytes:
    out = io.BytesIO()
    pictures = [Image.new("L", (8, 8), number % 256) for number in range(frames)]
    pictures[0].save(out, "GIF", save_all=True, append_images=pictures[1:])
    return out.getvalue()


def text_bomb() -> bytes:
    """A text chunk that unpacks to 60 MB."""
    packed = zlib.compress(b"a" * 60_000_000, 9)
    return png(8, 8, zlib.compress(b"\0" * 72), chunk(b"zTXt", b"k\0\0" + packed))


@functools.cache
def images() -> dict[str, bytes]:
    """Name → bytes; those that a decoder may accept, too: none may break anything."""
    files = {
        "empty": b"",
        "one-byte": b"\xff",
        "text": b"this is no image",
        "html": b"<script>alert(1)</script>",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n",
        "postscript-in-png-name": PNG,
        "huge-size": png_that_says(2**31 - 1, 2**31 - 1),
        "wide": png_that_says(2**31 - 1, 1),
        "zero-size": png_that_says(0, 0),
        "hungry": hungry_png(),
        "text-bomb": text_bomb(),
        "many-frames": gif_of(500),
        "no-data": PNG + chunk(b"IHDR", struct.pack("!IIBBBBB", 8, 8, 8, 0, 0, 0, 0)),
        "wrong-crc": png(8, 8, zlib.compress(b"\0" * 72))[:-6] + b"\0" * 6,
        "bad-zlib": png(8, 8, b"\x78\x9c" + b"\xff" * 50),
        "endless-tiff": b"II*\0\x08\0\0\0" + b"\x01\0" + b"\xff" * 12 + b"\x08\0\0\0",
        "webp-lies": b"RIFF\xff\xff\xff\xffWEBPVP8 " + b"\xff" * 40,
        "bmp-lies": b"BM"
        + struct.pack(
            "<IHHIIiiHHIIiiII", 9, 0, 0, 54, 40, 2**31 - 1, -(2**31), 1, 24, 0, 0, 0, 0, 0, 0
        ),
        "jpeg-markers": b"\xff\xd8\xff" + b"\xff\xe0\0\x02" * 3000,
    }
    for kind in FORMATS:
        whole = image(kind)
        files[f"{kind}-truncated"] = whole[: len(whole) // 2]
        files[f"{kind}-head"] = whole[:16]
        files[f"{kind}-tail"] = whole + b"\0" * 1000
        files[f"{kind}-and-zip"] = whole + b"PK\x05\x06" + b"\0" * 18
        files[f"{kind}-and-html"] = whole + b"<script>alert(1)</script>"
    return files


def mutated(seed: int) -> bytes:
    """A real image with bytes changed, cut out, doubled or moved."""
    chance = random.Random(seed)
    data = bytearray(image(chance.choice(FORMATS)))
    for _ in range(chance.randint(1, 12)):
        place = chance.randrange(len(data)) if data else 0
        what = chance.randrange(5)
        if what == 0 and data:
            data[place] = chance.randrange(256)
        elif what == 1:
            del data[place : place + chance.randint(1, 64)]
        elif what == 2:
            data[place:place] = data[place : place + chance.randint(1, 64)]
        elif what == 3:
            data[place:place] = bytes(chance.choices(range(256), k=chance.randint(1, 32)))
        elif len(data) > 4:
            number = chance.choice([0, 1, 255, 2**16 - 1, 2**31 - 1, 2**32 - 1])
            data[place : place + 4] = struct.pack(chance.choice(["<I", ">I"]), number)
    return bytes(data)


@functools.cache
def bodies() -> dict[str, bytes]:
    """JSON that is broken, deep, huge, or of other types than wanted."""
    return {
        "empty": b"",
        "null": b"null",
        "number": b"1",
        "list": b"[]",
        "text": b'"x"',
        "half": b'{"vector": [1, 2',
        "not-utf8": b'{"id": "\xff\xfe"}',
        "surrogate": b'{"id": "\\ud800"}',
        "nul": b'{"id": "a\\u0000b"}',
        "deep": b"[" * 100_000,
        "deep-object": b'{"filter":' * 5000 + b"1" + b"}" * 5000,
        "deep-payload": b'{"payload":' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}",
        "twice": b'{"id": "a", "id": "b"}',
        "nan": b'{"vector": [NaN, Infinity, -Infinity]}',
        "large-number": b'{"vector": [1e400], "k": 1e400}',
        "long-number": b'{"k": ' + b"9" * 5000 + b"}",
        "k-text": b'{"id": "a", "k": "many"}',
        "k-list": b'{"id": "a", "k": [1]}',
        "id-number": b'{"id": 5}',
        "id-list": b'{"id": ["a"]}',
        "filter-text": b'{"id": "a", "filter": "x"}',
        "filter-odd": b'{"id": "kind0/0000", "filter": {"$where": "1"}}',
        "filter-deep": b'{"id": "kind0/0000", "filter": ' + b'{"$not":' * 60 + b"{}" + b"}" * 61,
        "filter-wide": json.dumps(
            {"id": "kind0/0000", "filter": {"$or": [{"a": n} for n in range(5000)]}}
        ).encode(),
        "vector-nested": b'{"vector": [[1]]}',
        "vectors-flat": b'{"vectors": [1]}',
        "vector-huge": b'{"vector": [' + b"1," * 200_000 + b"1]}",
        "key-huge": b'{"' + b"k" * 1_000_000 + b'": 1}',
        "payload-huge": b'{"payload": {"a": "' + b"x" * 2_000_000 + b'"}}',
        "many-items": b'{"items": [' + b'{"id":"a","vector":[1]},' * 3000 + b"{}]}",
        "binary": bytes(range(256)),
        "pickle": b"\x80\x04\x95cposix\nsystem\n(S'id'\ntR.",
        "yaml": b"!!python/object/apply:os.system ['id']",
    }


def mutated_body(seed: int) -> bytes:
    chance = random.Random(seed)
    whole = json.dumps(
        {
            "id": "kind0/0000",
            "vector": [0.5] * 16,
            "k": 3,
            "filter": {"price": {"$lt": 5}},
            "payload": {"a": [1, {"b": None}]},
            "exact": True,
        }
    ).encode()
    data = bytearray(whole)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(data))
        if chance.random() < 0.5:
            data[place] = chance.choice(b'{}[]",:0eE+-.ntf\\u\xff')
        elif chance.random() < 0.5:
            del data[place : place + chance.randint(1, 8)]
        else:
            data[place:place] = data[place : place + chance.randint(1, 40)]
        if not data:
            return b""
    return bytes(data)


def forms() -> Iterator[tuple[str, bytes, bytes]]:
    """(name, content type, body) of forms that are none."""
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\ndata\r\n'
    good = b"multipart/form-data; boundary=x"
    yield "no-boundary", b"multipart/form-data", part
    yield "empty", good, b""
    yield "unfinished", good, part
    yield "no-name", good, b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--\r\n"
    yield "no-disposition", good, b"--x\r\n\r\n1\r\n--x--\r\n"
    yield "two-files", good, part * 2 + b"--x--\r\n"
    field = b'--x\r\nContent-Disposition: form-data; name="f%d"\r\n\r\n1\r\n'
    yield "many-fields", good, b"".join(field % n for n in range(100)) + b"--x--\r\n"
    twice = b'--x\r\nContent-Disposition: form-data; name="k"\r\n\r\n1\r\n'
    yield "field-twice", good, twice * 2 + part + b"--x--\r\n"
    long = b'--x\r\nContent-Disposition: form-data; name="k"\r\n\r\n' + b"1" * 2_000_000
    yield "long-field", good, long + b"\r\n--x--\r\n"
    yield "long-header", good, b"--x\r\nX: " + b"a" * 200_000 + b"\r\n\r\n1\r\n--x--\r\n"
    yield "odd-charset", b"multipart/form-data; boundary=x; charset=nothing", part + b"--x--\r\n"
    yield "binary", good, bytes(range(256)) * 100
    yield "bad-filter", good, part.replace(b'"file"; filename="a"', b'"filter"') + b"--x--\r\n"
