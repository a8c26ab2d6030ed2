"""Images on disk, some of them broken; and work done ahead in a thread."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from midspan import data
from midspan.data.decode import Pixels
from midspan.encoders import Encoder
from midspan.encoders.embedding import _blocks, _one_ahead
from midspan.errors import ImageError
from midspan.spaces import IntArray


@pytest.fixture
def photos(tmp_path: Path, images: Pixels) -> Path:
    """Two class folders of ten JPEG files; the pixels of the fourth of each end too early."""
    for row in range(20):
        path = tmp_path / "photos" / ("cat" if row < 10 else "dog") / f"{row:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[row]).save(path)
        if row % 10 == 3:
            path.write_bytes(path.read_bytes()[:-300])
    return tmp_path / "photos"


def test_embed_broken_image_raises_with_its_name(encoder: Encoder, photos: Path) -> None:
    with pytest.raises(ImageError, match=r"03\.jpg"):
        encoder.embed(data.folder(photos), batch_size=6, progress=False)


def test_embed_on_failure_leaves_broken_images_out(encoder: Encoder, photos: Path) -> None:
    failed: list[tuple[str, str]] = []
    result = encoder.embed(
        data.folder(photos),
        batch_size=1,
        progress=False,
        on_failure=lambda name, reason: failed.append((name, reason)),
    )
    assert [name for name, _ in failed] == ["cat/03.jpg", "dog/13.jpg"]
    assert all(reason for _, reason in failed)
    assert len(result) == 18
    assert result.labels is not None
    assert result.labels.tolist() == ["cat"] * 9 + ["dog"] * 9
    whole = encoder.embed(
        data.folder(photos), batch_size=7, progress=False, on_failure=lambda *_: None
    )
    assert whole.ids.tolist() == result.ids.tolist()
    np.testing.assert_allclose(whole.vectors, result.vectors, atol=1e-5)


def test_embed_strict_set_raises_even_with_on_failure(encoder: Encoder, photos: Path) -> None:
    with pytest.raises(ImageError, match=r"03\.jpg"):
        encoder.embed(data.folder(photos, strict=True), progress=False, on_failure=lambda *_: None)


@pytest.mark.parametrize(("count", "batch_size"), [(0, 4), (3, 4), (8, 4), (9, 4)])
def test_one_ahead_reads_every_row_once_in_order(count: int, batch_size: int) -> None:
    blocks = list(_one_ahead(lambda rows: rows, _blocks(count, batch_size)))
    assert [row for rows in blocks for row in rows] == list(range(count))
    assert all(len(rows) == batch_size for rows in blocks[:-1])


def test_one_ahead_reads_the_next_block_while_this_one_is_used() -> None:
    reading = threading.Event()

    def read(rows: IntArray) -> int:
        if rows[0] == 1:
            reading.set()
        return int(rows[0])

    blocks = _one_ahead(read, _blocks(2, 1))
    assert next(blocks) == 0
    assert reading.wait(timeout=30)
    assert next(blocks) == 1


def test_one_ahead_error_in_the_thread_is_raised() -> None:
    def read(rows: IntArray) -> int:
        if rows[0] == 1:
            raise ImageError("the second")
        return 0

    blocks = _one_ahead(read, _blocks(3, 1))
    next(blocks)
    with pytest.raises(ImageError, match="the second"):
        next(blocks)
