from __future__ import annotations

from pathlib import Path

import pytest

from midspan.data import csv
from midspan.errors import DataError, FormatError, ImageError, MidspanError
from midspan.image_size import ImageSize
from tests.data.conftest import WriteImage


@pytest.fixture
def three(write_image: WriteImage) -> None:
    for value, name in enumerate(("img/a.png", "img/b.png", "img/c.png")):
        write_image(name, value=value)


def listed(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "list.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.usefixtures("three")
def test_csv_columns_of_open_metric_learning_are_read(tmp_path: Path) -> None:
    path = listed(
        tmp_path,
        "path,label,split,is_query,is_gallery,category\n"
        "img/a.png,7,train,,,shoe\n"
        "img/b.png,11,validation,True,False,hat\n"
        "img/c.png,7,validation,False,1,shoe\n",
    )
    images = csv(path)
    assert images.ids.tolist() == ["img/a.png", "img/b.png", "img/c.png"]
    assert images.labels is not None
    assert images.labels.tolist() == ["7", "11", "7"]
    assert images.class_names == ("7", "11")  # as numbers, not as text
    assert images.train.ids.tolist() == ["img/a.png"]
    assert images.columns["is_query"].tolist() == [False, True, False]
    assert images.columns["is_gallery"].tolist() == [False, False, True]
    assert images.columns["category"].tolist() == ["shoe", "hat", "shoe"]
    assert images.load([2, 0], ImageSize(2, 2, 1))[:, 0, 0, 0].tolist() == [2, 0]


@pytest.mark.usefixtures("three")
def test_csv_with_paths_only_has_no_labels(tmp_path: Path) -> None:
    images = csv(listed(tmp_path, "\ufeffpath\nimg/c.png\n\nimg/a.png\n"))
    assert images.ids.tolist() == ["img/c.png", "img/a.png"]  # the order of the file
    assert (images.labels, images.split) == (None, None)


@pytest.mark.usefixtures("three")
def test_csv_empty_split_column_is_no_split(tmp_path: Path) -> None:
    assert csv(listed(tmp_path, "path,split\nimg/a.png,\nimg/b.png,\n")).split is None


def test_csv_quoted_names_and_labels_are_read(write_image: WriteImage, tmp_path: Path) -> None:
    write_image('odd, "name" ü.png')
    images = csv(listed(tmp_path, 'label,path\n"big, red","odd, ""name"" ü.png"\n'))
    assert images.ids.tolist() == ['odd, "name" ü.png']
    assert images.class_names == ("big, red",)


@pytest.mark.usefixtures("three")
def test_csv_paths_are_relative_to_the_file_or_root(tmp_path: Path) -> None:
    sub = tmp_path / "lists"
    sub.mkdir()
    with pytest.raises(DataError, match=r"line 2: '../img/a.png' leads out .* pass root="):
        csv(listed(sub, "path\n../img/a.png\n"))
    assert len(csv(listed(sub, "path\nimg/a.png\n"), root=tmp_path)) == 1
    images = csv(listed(sub, f"path\n{tmp_path / 'img' / 'a.png'}\n"))
    assert images.uri(0) == str(tmp_path / "img" / "a.png")


@pytest.mark.usefixtures("three")
def test_csv_missing_and_broken_images_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_text("no picture")
    text = "path,label\nimg/a.png,x\nbad.png,y\ngone.png,z\nimg/c.png,z\n"
    images = csv(listed(tmp_path, text))
    assert images.ids.tolist() == ["img/a.png", "img/c.png"]
    assert images.labels is not None
    assert images.labels.tolist() == ["x", "z"]
    assert [skipped.path for skipped in images.skipped] == ["bad.png", "gone.png"]
    assert images.skipped[1].reason == "cannot be read (No such file or directory)"
    with pytest.raises(ImageError, match=r"bad\.png: is not a JPEG"):
        csv(listed(tmp_path, text), strict=True)
    with pytest.raises(DataError, match=r"none of 1 images can be read, first gone\.png: cannot"):
        csv(listed(tmp_path, "path\ngone.png\n"))


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"expected the column 'path' .* got \[\]"),
        ("file,label\nimg/a.png,1\n", r"expected the column 'path' .* got \['file', 'label'\]"),
        ("path,path\na,b\n", "expected each column once"),
        ("path\n", "lists no images"),
        ("path,label\nimg/a.png\n", "line 2: 1 values for 2 columns; quote values"),
        ("path,label\nimg/a.png,1,2\n", "line 2: 3 values for 2 columns"),
        ("path,label\nimg/a.png,1\nimg/b.png,\n", "line 3: expected a label, got none"),
        ("path,label\n,1\n", "line 2: expected a path, got none"),
        ("path\nimg/a.png\nimg/b.png\nimg/a.png\n", "line 4: 'img/a.png' is already in line 2"),
        (
            "path,split\nimg/a.png,train\nimg/b.png,\n",
            "line 3: split: expected one of 'train'.* got ''",
        ),
        ("path,split\nimg/a.png,dev\n", "line 2: split: expected one of 'train', 'validat"),
        (
            "path,is_query\nimg/a.png,maybe\n",
            "line 2: is_query: expected one of 'true'.* got 'maybe'",
        ),
        ("path,x_1,y_1\nimg/a.png,1,2\n", r"has boxes \(x_1, y_1\), which are not applied"),
        ('path\n"img/a.png\n', "not a readable CSV file"),
        ("path\n" + "x" * 200_000 + "\n", "not a readable CSV file"),
        ("path\nimg/\0.png\n", "zero byte"),
    ],
)
def test_csv_hostile_rows_raise_data_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MidspanError, match=message):
        csv(listed(tmp_path, text))


def test_csv_missing_or_not_utf8_raises_format_error(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        csv(tmp_path / "gone.csv")
    latin = tmp_path / "latin.csv"
    latin.write_bytes("path\ncafé.png\n".encode("latin-1"))
    with pytest.raises(FormatError, match="not a readable CSV file in UTF-8"):
        csv(latin)
