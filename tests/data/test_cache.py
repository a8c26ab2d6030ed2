from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

from midspan.data import ImageSet, cache, folder
from midspan.data.cache import cache_dir
from midspan.errors import DataError
from midspan.image_size import ImageSize
from tests.data.conftest import WriteImage


@pytest.fixture
def files(write_image: WriteImage, tmp_path: Path, truncated_jpeg: bytes) -> ImageSet:
    """Five good images with one that fails when decoded among them."""
    for n in range(5):
        write_image(f"set/{n}.png", value=50 * n)
    (tmp_path / "set" / "2b.jpg").write_bytes(truncated_jpeg)
    return folder(tmp_path / "set")


def decode(files: ImageSet, place: Path) -> ImageSet:
    return files.cached(ImageSize(4, 4, 1), limit=0, folder=place)


def test_cached_large_set_is_memory_mapped_from_a_file(files: ImageSet, tmp_path: Path) -> None:
    in_memory = files.cached(ImageSize(4, 4, 1))
    mapped = decode(files, tmp_path / "cache")
    assert mapped.ids.tolist() == in_memory.ids.tolist()
    assert mapped.skipped == in_memory.skipped
    assert [skipped.path for skipped in mapped.skipped] == ["2b.jpg"]
    rows = np.arange(5)
    got = mapped.load(rows, ImageSize(4, 4, 1))
    assert np.array_equal(got, in_memory.load(rows, ImageSize(4, 4, 1)))
    assert isinstance(mapped.source.images, np.memmap)  # type: ignore[attr-defined]
    assert not isinstance(got, np.memmap)


def test_cached_second_run_reads_the_file(
    files: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = decode(files, tmp_path / "cache")

    def never(*_: object, **__: object) -> None:
        pytest.fail("decoded again")

    monkeypatch.setattr(cache, "load_readable", never)
    again = decode(folder(tmp_path / "set"), tmp_path / "cache")
    assert again.skipped == first.skipped
    rows = np.arange(5)
    assert np.array_equal(
        again.load(rows, ImageSize(4, 4, 1)),
        first.load(rows, ImageSize(4, 4, 1)),
    )


def test_cached_changed_image_or_size_is_decoded_again(
    files: ImageSet, write_image: WriteImage, tmp_path: Path
) -> None:
    decode(files, tmp_path / "cache")
    write_image("set/0.png", value=99, width=30)
    changed = decode(folder(tmp_path / "set"), tmp_path / "cache")
    assert (changed.load([0], ImageSize(4, 4, 1)) == 99).all()
    files.cached(ImageSize(5, 4, 1), limit=0, folder=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 3


@pytest.mark.parametrize("damage", ["pixels", "manifest", "shape"])
def test_cached_damaged_file_is_written_again(files: ImageSet, tmp_path: Path, damage: str) -> None:
    first = decode(files, tmp_path / "cache")
    expected = first.load(np.arange(5), ImageSize(4, 4, 1))
    (place,) = (tmp_path / "cache").iterdir()
    if damage == "pixels":
        (place / "pixels.bin").write_bytes(b"short")
    elif damage == "manifest":
        (place / "manifest.json").write_text("{")
    else:
        (place / "manifest.json").write_text(json.dumps({"failed": "none"}))
    again = decode(files, tmp_path / "cache")
    assert np.array_equal(again.load(np.arange(5), ImageSize(4, 4, 1)), expected)
    assert list((tmp_path / "cache").iterdir()) == [place]  # nothing left behind


def test_cached_interrupted_run_leaves_no_files(
    files: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "load_readable", interrupt)
    with pytest.raises(KeyboardInterrupt):
        decode(files, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_cached_unwritable_folder_names_it_and_the_remedy(files: ImageSet, tmp_path: Path) -> None:
    in_the_way = tmp_path / "cache"
    in_the_way.write_text("a file, not a folder")
    with pytest.raises(DataError, match=r"cannot hold the decoded images, .* set MIDSPAN_CACHE"):
        decode(files, in_the_way)


def test_cached_full_disk_raises_data_error(
    files: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("midspan.data.cache.json.dumps", full)
    with pytest.raises(DataError, match=r"0\.0 GiB \(No space left on device\)"):
        decode(files, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_cached_no_readable_image_gives_an_empty_set(tmp_path: Path, truncated_jpeg: bytes) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.jpg").write_bytes(truncated_jpeg)
    for _ in range(2):  # made, then found
        empty = decode(folder(tmp_path / "set"), tmp_path / "cache")
        assert len(empty) == 0
        assert [skipped.path for skipped in empty.skipped] == ["a.jpg"]


def test_cached_progress_is_shown_on_stderr(
    files: ImageSet, capsys: pytest.CaptureFixture[str]
) -> None:
    files.cached(ImageSize(4, 4, 1), progress=True)
    shown = capsys.readouterr()
    assert "decode: 6 images in" in shown.err
    assert shown.out == ""


def test_cache_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MIDSPAN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "midspan"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "midspan"
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
