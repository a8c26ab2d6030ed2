"""Small real image files, written where a test needs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

WriteImage = Callable[..., Path]


@pytest.fixture
def write_image(tmp_path: Path) -> WriteImage:
    """write_image("cat/1.png", value=40) → a 12 x 10 grey picture of that value."""

    def write(name: str, *, value: int = 128, height: int = 10, width: int = 12) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((height, width, 3), value, dtype=np.uint8)).save(path)
        return path

    return write


@pytest.fixture
def truncated_jpeg() -> bytes:
    """A whole header, half of the picture."""
    from io import BytesIO

    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    stream = BytesIO()
    Image.fromarray(noise).save(stream, "JPEG")
    whole = stream.getvalue()
    return whole[: len(whole) // 2]
