"""Small tar shards, written where a test needs them."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image


def picture(value: int, *, kind: str = "PNG", height: int = 10, width: int = 12) -> bytes:
    """A picture of one grey, as a file."""
    stream = BytesIO()
    Image.fromarray(np.full((height, width, 3), value, dtype=np.uint8)).save(stream, kind)
    return stream.getvalue()


def write_shard(path: Path, entries: Mapping[str, bytes | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in entries.items():
            content = data.encode() if isinstance(data, str) else data
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
    return path
