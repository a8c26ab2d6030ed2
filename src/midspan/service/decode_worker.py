"""The process that decodes untrusted bytes: python -m midspan.service.decode_worker FD MEMORY CPU.

It has a socket to the service and little else: limits on memory, CPU seconds, files and their
size. What breaks it breaks one request. Messages are a length (8 bytes), a JSON line, raw bytes.
"""

from __future__ import annotations

import io
import json
import math
import resource
import socket
import struct
import sys
import time
from typing import Any

LENGTH = struct.Struct("!II")  # of the JSON head, of the body
REFUSED, FAILED = "refused", "failed"  # the image's fault; ours


def send(wire: socket.socket, head: dict[str, Any], body: bytes | memoryview = b"") -> None:
    raw = json.dumps(head).encode()
    wire.sendall(LENGTH.pack(len(raw), len(body)) + raw)
    if len(body):
        wire.sendall(body)


def receive(
    wire: socket.socket, *, most: int, until: float | None = None
) -> tuple[dict[str, Any], bytearray]:
    """Raises EOFError when the other side is gone, TimeoutError at the time `until`."""
    head, body = LENGTH.unpack(_exactly(wire, LENGTH.size, until))
    if head > 65536 or body > most:
        raise EOFError(f"a message of {head} + {body} bytes")
    return json.loads(_exactly(wire, head, until)), _exactly(wire, body, until)


def _exactly(wire: socket.socket, count: int, until: float | None) -> bytearray:
    buffer = bytearray(count)
    view, got = memoryview(buffer), 0
    while got < count:
        if until is not None:  # for the whole message: it may come byte by byte
            wire.settimeout(max(until - time.monotonic(), 1e-3))
        size = wire.recv_into(view[got:])
        if size == 0:
            raise EOFError("the other side is gone")
        got += size
    return buffer


def main() -> None:
    number, memory, seconds = (int(argument) for argument in sys.argv[1:4])
    wire = socket.socket(fileno=number)
    import midspan.data.decode  # noqa: F401  # before the limits: libraries are mapped once
    from midspan.errors import ImageError

    _limit(memory)
    while True:
        try:
            head, body = receive(wire, most=2**30)
        except EOFError:
            return
        _allow_cpu(seconds)
        try:
            answer, out = _work(head, bytes(body))
        except ImageError as error:
            answer, out = {"status": REFUSED, "reason": str(error)}, b""
        except MemoryError:
            answer, out = {"status": REFUSED, "reason": "the image takes too much memory"}, b""
        except Exception as error:
            answer, out = {"status": FAILED, "reason": type(error).__name__}, b""
        send(wire, answer, out)


def _limit(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes no file


def _allow_cpu(seconds: int) -> None:
    """From now on; over it the kernel ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _work(head: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    from midspan.data import decode
    from midspan.image_size import ImageSize

    width, height = _checked_size(data, pixels=head["pixels"], frames=head["frames"])
    if head["do"] == "fit":
        image = decode.decode_image(
            data, ImageSize(head["height"], head["width"], head["channels"], head["fit"])
        )
        return {"status": "ok", "shape": image.shape}, image.tobytes()
    scale = min(1.0, head["size"] / max(width, height))
    small = decode.decode_image(
        data,
        ImageSize(max(1, round(height * scale)), max(1, round(width * scale)), 3),
    )
    return {"status": "ok"}, encode_thumbnail(small)


def _checked_size(data: bytes, *, pixels: int, frames: int) -> tuple[int, int]:
    """(width, height) as the image stands upright; from the header, nothing is decoded."""
    from midspan.data import decode
    from midspan.errors import ImageError

    with decode.open_checked(data) as opened:
        width, height = opened.size
        if width * height > pixels:
            raise ImageError(
                f"image: says it is {width:,} x {height:,} pixels; at most {pixels:,} are taken"
            )
        count = getattr(opened, "n_frames", 1)
        if count > frames:
            raise ImageError(f"image: has {count:,} frames; at most {frames:,} are taken")
        try:
            sideways = opened.getexif().get(274, 1) in (5, 6, 7, 8)  # the EXIF orientation
        except Exception:  # a broken EXIF block is no reason to refuse the pixels
            sideways = False
    return (height, width) if sideways else (width, height)


def encode_thumbnail(image: Any) -> bytes:
    """(H, W, 3) uint8 → PNG if it is tiny, else JPEG."""
    from PIL import Image

    out = io.BytesIO()
    picture = Image.fromarray(image)
    if max(picture.size) <= 64:
        picture.save(out, "PNG")
    else:
        picture.save(out, "JPEG", quality=85)
    return out.getvalue()


if __name__ == "__main__":
    main()
