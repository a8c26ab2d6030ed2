from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.data import folder
from midspan.errors import DataError, ImageError
from midspan.image_size import ImageSize
from tests.data.conftest import WriteImage
from tests.data.test_decode import png_header


def test_folder_of_class_folders_gives_labels(write_image: WriteImage, tmp_path: Path) -> None:
    for value, name in enumerate(("dog/b.png", "cat/z.png", "cat/A.JPG", "dog/deep/er/c.webp")):
        write_image(name, value=50 * value)
    (tmp_path / "cat" / "notes.txt").write_text("ignored")
    (tmp_path / "cat" / ".hidden.png").write_text("ignored")
    (tmp_path / "empty").mkdir()
    images = folder(tmp_path)
    assert images.ids.tolist() == ["cat/A.JPG", "cat/z.png", "dog/b.png", "dog/deep/er/c.webp"]
    assert images.class_names == ("cat", "dog")
    assert images.labels is not None
    assert images.labels.tolist() == ["cat", "cat", "dog", "dog"]
    assert images.split is None
    assert images.skipped == ()
    pixels = images.load([1, 2], ImageSize(3, 3, 3))
    assert pixels[:, 0, 0, 0].tolist() == [50, 0]
    assert images.uri(1) == str(tmp_path / "cat" / "z.png")


def test_folder_flat_has_no_labels(write_image: WriteImage, tmp_path: Path) -> None:
    for name in ("10.png", "9.png", "a b.png"):
        write_image(name)
    images = folder(tmp_path)
    assert images.ids.tolist() == ["10.png", "9.png", "a b.png"]
    assert images.labels is None


@pytest.mark.parametrize("second", ["test", "val", "validation"])
def test_folder_train_and_test_become_the_split(
    write_image: WriteImage, tmp_path: Path, second: str
) -> None:
    for name in ("train/cat/1.png", "train/dog/1.png", f"{second}/emu/1.png"):
        write_image(name)
    images = folder(tmp_path)
    assert images.class_names == ("cat", "dog", "emu")
    assert images.train.ids.tolist() == ["train/cat/1.png", "train/dog/1.png"]
    assert images.test.ids.tolist() == [f"{second}/emu/1.png"]


def test_folder_train_alongside_other_classes_is_a_class(
    write_image: WriteImage, tmp_path: Path
) -> None:
    for name in ("train/1.png", "plane/1.png"):
        write_image(name)
    images = folder(tmp_path)
    assert images.class_names == ("plane", "train")
    assert images.split is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("cat/1.png", "loose.png"), "1 images .first 'loose.png'. are next to class folders"),
        (
            ("train/c/1.png", "val/c/2.png", "test/c/3.png"),
            "has test, train, val; an image set has",
        ),
        (("train/1.png", "test/2.png"), "expected train/<class>/<image>, got"),
    ],
)
def test_folder_unclear_layout_raises_data_error(
    write_image: WriteImage, tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    for name in names:
        write_image(name)
    with pytest.raises(DataError, match=message):
        folder(tmp_path)


def test_folder_without_images_raises_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no images in it \(it is empty\); expected \.jpg"):
        folder(tmp_path)
    for name in ("a.psd", "b.psd", "readme"):
        (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=r"no images in it \(only 2 \.psd, 1 no ending\)"):
        folder(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        folder(tmp_path / "gone")
    with pytest.raises(DataError, match="no such folder"):
        folder(tmp_path / "readme")


def test_folder_of_unreadable_files_raises_data_error(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.png"):
        (tmp_path / name).write_text("no picture")
    with pytest.raises(DataError, match=r"none of 2 images can be read, first a\.jpg: is not a JP"):
        folder(tmp_path)


def test_folder_corrupt_files_are_skipped_by_name(write_image: WriteImage, tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/3.png", "dog/1.png", "dog/2.png"):
        write_image(name)
    (tmp_path / "cat" / "2.jpg").write_bytes(b"\xff\xd8\xff broken")
    (tmp_path / "dog" / "0.png").write_bytes(png_header(50_000, 50_000))
    images = folder(tmp_path)
    assert images.ids.tolist() == ["cat/1.png", "cat/3.png", "dog/1.png", "dog/2.png"]
    assert images.labels is not None
    assert images.labels.tolist() == ["cat", "cat", "dog", "dog"]
    assert [skipped.path for skipped in images.skipped] == ["cat/2.jpg", "dog/0.png"]
    assert images.skipped[0].reason.startswith("has a broken header")
    assert images.skipped[1].reason.startswith("says it is 50,000 x 50,000 pixels")
    with pytest.raises(ImageError, match=r"2\.jpg: has a broken header"):
        folder(tmp_path, strict=True)


def test_folder_class_of_broken_images_keeps_its_name(
    write_image: WriteImage, tmp_path: Path
) -> None:
    write_image("cat/1.png")
    write_image("emu/1.png")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "1.jpg").write_text("no picture")
    images = folder(tmp_path)
    assert images.class_names == ("cat", "dog", "emu")
    assert images.labels is not None
    assert images.labels.tolist() == ["cat", "emu"]


def test_folder_unusual_names_are_read(write_image: WriteImage, tmp_path: Path) -> None:
    names = [
        "Ünïcödé/日本 語.png",
        "new\nline/#?%.png",
        "🐈/'\"; DROP.png",
        "a/" + "x" * 200 + ".png",
    ]
    for value, name in enumerate(names):
        write_image(name, value=value)
    images = folder(tmp_path)
    assert sorted(images.ids.tolist()) == sorted(names)
    got = images.load(np.arange(4), ImageSize(2, 2, 1))[:, 0, 0, 0]
    assert {str(name): int(value) for name, value in zip(images.ids, got, strict=True)} == {
        name: value for value, name in enumerate(names)
    }


def test_folder_names_not_in_utf8_are_skipped(write_image: WriteImage, tmp_path: Path) -> None:
    write_image("good.png")
    try:
        with open(os.fsencode(tmp_path) + b"/caf\xe9.png", "wb") as file:
            file.write(b"x")
    except OSError:
        pytest.skip("this file system only takes UTF-8")
    images = folder(tmp_path)
    assert images.ids.tolist() == ["good.png"]
    assert [skipped.path for skipped in images.skipped] == ["caf\ufffd.png"]
    assert "not valid UTF-8" in images.skipped[0].reason
    with pytest.raises(ImageError, match="not valid UTF-8; rename it"):
        folder(tmp_path, strict=True)
    os.mkdir(os.fsencode(tmp_path) + b"/d\xe9j\xe0")
    with open(os.fsencode(tmp_path) + b"/d\xe9j\xe0/vu.png", "wb") as file:
        file.write(b"x")
    assert len(folder(tmp_path).skipped) == 2


def test_folder_links_are_followed_once(write_image: WriteImage, tmp_path: Path) -> None:
    outside = write_image("elsewhere/pictures/1.png")
    write_image("set/cat/1.png")
    root = tmp_path / "set"
    (root / "dog").symlink_to(outside.parent)  # followed
    (root / "cat" / "again").symlink_to(root)  # a loop
    (root / "cat" / "self").symlink_to(root / "cat" / "self")
    (root / "cat" / "broken.png").symlink_to(tmp_path / "gone.png")
    images = folder(root)
    assert images.ids.tolist() == ["cat/1.png", "dog/1.png"]
    reasons = {skipped.path: skipped.reason for skipped in images.skipped}
    assert reasons["cat/again"] == "a link to a folder that was already read"
    assert "cannot be read" in reasons["cat/broken.png"]


def test_folder_unreadable_subfolder_is_skipped(
    write_image: WriteImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_image("cat/1.png")
    write_image("dog/1.png")
    scandir = os.scandir

    def guarded(path: Path) -> Any:
        if path.name == "dog":
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    images = folder(tmp_path)
    assert images.ids.tolist() == ["cat/1.png"]
    assert [str(skipped) for skipped in images.skipped] == [
        "dog: cannot be read (Permission denied)"
    ]
