from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from midspan.data.webdataset import by_name
from midspan.data.webdataset.by_name import shard_images
from midspan.data.webdataset.index import ShardIndex
from midspan.errors import DataError, ImageError
from midspan.image_size import ImageSize
from tests.data.shards import picture, write_shard


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_shard_images_each_name_gives_its_image(tmp_path: Path) -> None:
    """Against tarfile, in any order; names with all kinds of signs, two images of one sample."""
    names = ["b/1.png", "a#1.png", "a/2.seg.png", "a/2.png", "Ω.PNG", "x.tar#y.png"]
    path = write_shard(
        tmp_path / "a.tar",
        {name: picture(20 * number) for number, name in enumerate(names)} | {"b/1.cls": "cat"},
    )
    requested = [*reversed(names), names[2]]
    source = shard_images(path, requested)
    with tarfile.open(path) as tar:
        for row, name in enumerate(requested):
            opened = tar.extractfile(name)
            assert opened is not None
            assert source.read(row) == opened.read()
            assert source.uri(row) == f"{path}#{name}"
    got = source.load(np.arange(2), ImageSize(2, 2, 1, "squash"))
    assert got[:, 0, 0, 0].tolist() == [100, 80]


def test_shard_images_missing_name_fails_for_its_row_only(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.tar", {"1.png": picture(1), "1.cls": "a", "../2.png": b"x"})
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        tar.addfile(link)
    source = shard_images(path, ["0.png", "1.png", "1.cls", "../2.png", "link.png", "zz.png"])
    assert source.read(1) == picture(1)
    for row in (0, 2, 3, 4, 5):
        with pytest.raises(ImageError, match="no image of this name"):
            source.read(row)
    with pytest.raises(ImageError, match="more than 3 are not read"):
        source.read(1, most=3)
    empty = write_shard(tmp_path / "empty.tar", {"1.cls": "a"})
    with pytest.raises(ImageError, match=r"empty\.tar#1\.png: no image of this name"):
        shard_images(empty, ["1.png"]).load(np.array([0]), ImageSize(2, 2, 1, "squash"))


def test_shard_images_unreadable_shard_raises_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such shard"):
        shard_images(tmp_path / "gone.tar", ["1.png"])
    path = write_shard(tmp_path / "a.tar", {"1.png": picture(1)})
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(DataError, match="fetch the shard again"):
        shard_images(path, ["1.png"])
    with tarfile.open(tmp_path / "twice.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("1.png"), io.BytesIO())
    with pytest.raises(DataError, match="expected each name once"):
        shard_images(tmp_path / "twice.tar", ["1.png"])


def test_shard_images_index_is_read_once_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shard(tmp_path / "a.tar", {"1.png": picture(1)})
    walked: list[Path] = []

    def walk(path: Path, size: int, changed: int) -> ShardIndex:
        walked.append(path)
        return real(path, size, changed)

    real = by_name._walk
    monkeypatch.setattr(by_name, "_walk", walk)
    for _ in range(2):
        by_name._index.cache_clear()  # a process that begins
        assert shard_images(path, ["1.png"]).read(0) == picture(1)
    assert walked == [path]
    write_shard(path, {"0.png": picture(0), "1.png": picture(9)})
    assert shard_images(path, ["1.png"]).read(0) == picture(9)
    assert walked == [path, path]
