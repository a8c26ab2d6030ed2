from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from midspan.data import open_images
from midspan.errors import DataError, ImageError
from tests.data.conftest import WriteImage


def test_open_images_folder_csv_or_npz_is_recognised(
    write_image: WriteImage, tmp_path: Path
) -> None:
    write_image("set/cat/1.png")
    (tmp_path / "list.CSV").write_text("path\nset/cat/1.png\n")
    np.savez(tmp_path / "two.npz", images=np.zeros((2, 4, 4), dtype=np.uint8))
    assert open_images(tmp_path / "set").ids.tolist() == ["cat/1.png"]
    assert open_images(str(tmp_path / "list.CSV")).ids.tolist() == ["set/cat/1.png"]
    assert open_images(tmp_path / "two.npz").ids.tolist() == ["two#0", "two#1"]


def test_open_images_strict_broken_image_raises_image_error(
    write_image: WriteImage, tmp_path: Path
) -> None:
    write_image("set/1.png")
    (tmp_path / "set" / "2.png").write_text("no picture")
    (tmp_path / "list.csv").write_text("path\nset/1.png\nset/2.png\n")
    for place in (tmp_path / "set", tmp_path / "list.csv"):
        assert len(open_images(place)) == 1
        with pytest.raises(ImageError, match=r"2\.png: is not"):
            open_images(place, strict=True)


def test_open_images_unknown_path_raises_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        open_images(tmp_path / "gone")
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(DataError, match=r"a \.csv list, an \.npz file or \.tar shards"):
        open_images(tmp_path / "a.txt")
