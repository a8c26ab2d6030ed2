from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from midspan.data import sources
from midspan.data.decode import Channels, Pixels
from midspan.data.sources import ArraySource, CachedSource, FileSource, ImageSource, check_files
from midspan.image_size import ImageSize
from tests.data.conftest import WriteImage


@pytest.fixture(params=["array", "files", "cached"])
def source(request: pytest.FixtureRequest, write_image: WriteImage, tmp_path: Path) -> ImageSource:
    """Image number n is n * 20 all over, however it is kept."""
    images = np.stack([np.full((5, 5, 3), 20 * n, dtype=np.uint8) for n in range(7)])
    for n in range(7):
        write_image(f"{n}.png", value=20 * n)
    array = ArraySource.of(images, name="set")
    files = FileSource(root=tmp_path, names=np.array([f"{n}.png" for n in range(7)]))
    cached = CachedSource(images=images, picks=np.arange(7), fit="squash", original=files)
    made: dict[str, ImageSource] = {"array": array, "files": files, "cached": cached}
    return made[request.param]


def numbers(images: Pixels) -> list[int]:
    assert images.dtype == np.uint8
    return [int(image.mean()) // 20 for image in images]


def test_source_load_returns_the_requested_rows(source: ImageSource) -> None:
    assert len(source) == 7
    boxes: list[tuple[int, int, Channels]] = [(5, 5, 3), (3, 4, 3), (9, 9, 1)]
    for height, width, channels in boxes:
        got = source.load(np.array([6, 1, 1, 0]), ImageSize(height, width, channels, "crop"))
        assert got.shape == (4, height, width, channels)
        assert numbers(got) == [6, 1, 1, 0]


def test_source_take_of_a_take_keeps_rows_and_uris(source: ImageSource) -> None:
    part = source.take(np.array([5, 3, 1])).take(np.array([2, 0]))
    assert len(part) == 2
    got = part.load(np.arange(2), ImageSize(5, 5, 3, "squash"))
    assert numbers(got) == [1, 5]
    assert part.uri(1) == source.uri(5)
    assert part.load(np.arange(0), ImageSize(5, 5, 3, "squash")).shape[0] == 0


def test_source_signature_depends_on_the_rows(source: ImageSource) -> None:
    assert source.signature() == source.signature()
    assert source.take(np.array([1, 2])).signature() != source.take(np.array([2, 1])).signature()


def test_file_source_signature_depends_on_size_and_time(
    write_image: WriteImage, tmp_path: Path
) -> None:
    path = write_image("a.png")
    files = FileSource(root=tmp_path, names=np.array(["a.png"]))
    before = files.signature()
    os.utime(path, ns=(1, 1))
    assert files.signature() != before
    path.unlink()
    assert files.signature() not in (before, "")


def test_file_source_absolute_names_ignore_the_root(
    write_image: WriteImage, tmp_path: Path
) -> None:
    path = write_image("here/a.png")
    files = FileSource(root=tmp_path / "elsewhere", names=np.array([str(path)]))
    assert files.uri(0) == str(path)


def test_file_source_batch_is_decoded_by_several_threads(
    write_image: WriteImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2, timeout=120)  # breaks unless two are in it at the same time

    def decode(path: str, _: ImageSize) -> Pixels:
        together.wait()
        return np.zeros((5, 5, 3), dtype=np.uint8)

    monkeypatch.setattr(sources, "decode_image", decode)
    monkeypatch.setattr(sources, "_threads", lambda: 2)
    files = FileSource(root=tmp_path, names=np.array(["a.png", "b.png"]))
    assert files.load(np.arange(2), ImageSize(5, 5, 3, "squash")).shape[0] == 2


def test_check_files_reads_headers_only(
    write_image: WriteImage, tmp_path: Path, truncated_jpeg: bytes
) -> None:
    write_image("good.png")
    (tmp_path / "half.jpg").write_bytes(truncated_jpeg)
    (tmp_path / "bad.jpg").write_text("no picture")
    failed = check_files(tmp_path, ["good.png", "bad.jpg", "half.jpg", "gone.png"])
    assert list(failed) == [1, 3]
    assert failed[1].startswith("is not a JPEG")
    assert failed[3] == "cannot be read (No such file or directory)"
