from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midspan.data import ImageSet, Skipped, folder
from midspan.data.sources import ArraySource, CachedSource
from midspan.errors import DataError, ImageError
from midspan.image_size import ImageSize
from tests.data.conftest import WriteImage

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def image_set(**changes: Any) -> ImageSet:
    given: dict[str, Any] = {
        "ids": np.array(list("abcdef")),
        "source": ArraySource.of(IMAGES, name="six.npz"),
        "labels": np.array(["ant", "ant", "bee", "bee", "cat", "cat"]),
        "split": np.array([0, 0, 0, 0, 1, 1]),
        "columns": {"camera": np.array([5, 6, 7, 8, 9, 10])},
    }
    return ImageSet(**{**given, **changes})


@pytest.mark.parametrize(
    ("rows", "ids"),
    [
        (slice(1, 3), "bc"),
        ([5, 0], "fa"),
        ([-1], "f"),
        ([], ""),
        (np.array([True, False, True, False, False, False]), "ac"),
    ],
)
def test_image_set_part_keeps_ids_labels_and_columns_aligned(rows: Any, ids: str) -> None:
    whole = image_set()
    part = whole[rows]
    places = ["abcdef".index(letter) for letter in ids]
    assert part.ids.tolist() == list(ids)
    assert part.labels is not None
    assert part.labels.tolist() == [("ant", "bee", "cat")[place // 2] for place in places]
    assert part.columns["camera"].tolist() == [5 + place for place in places]
    assert part.class_names == whole.class_names
    pixels = part.load(range(len(part)), ImageSize(8, 8, 3))
    assert np.array_equal(pixels, IMAGES[places])
    assert [part.uri(row) for row in range(len(part))] == [f"six.npz#{place}" for place in places]


def test_image_set_part_of_a_part_shares_the_pixels() -> None:
    part = image_set()[[4, 2, 0]][[2, 1]]
    assert part.ids.tolist() == ["a", "c"]
    assert part.uri(1) == "six.npz#2"
    assert isinstance(part.source, ArraySource)
    assert part.source.images is IMAGES


def test_image_set_train_and_test_follow_the_split() -> None:
    whole = image_set()
    assert whole.train.ids.tolist() == list("abcd")
    assert whole.test.ids.tolist() == list("ef")
    assert whole.test.class_names == ("ant", "bee", "cat")
    with pytest.raises(DataError, match="no split into train and test; use all of it, add"):
        _ = image_set(split=None).train


def test_image_set_labels_are_names_in_whole_and_part() -> None:
    part = image_set().test
    assert part.labels is not None
    assert part.labels.tolist() == ["cat", "cat"]
    assert part.class_names == ("ant", "bee", "cat")  # the order stays that of the whole
    numbers = image_set(labels=np.array([10, 10, 9, 9, -1, -1]))
    assert numbers.labels is not None
    assert numbers.labels.tolist() == ["10", "10", "9", "9", "-1", "-1"]
    assert numbers.class_names == ("-1", "9", "10")
    chosen = image_set(class_names=("cat", "bee", "ant", "dog"))
    assert chosen.class_names == ("cat", "bee", "ant", "dog")


def test_image_set_repr_shows_counts_and_columns() -> None:
    text = repr(image_set(skipped=(Skipped(path="x.jpg", reason="is empty"),)))
    assert text == ("ImageSet(6 images; 3 classes; 4 train / 2 test; columns camera; 1 skipped)")


def test_load_of_the_right_size_is_plain_indexing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        pytest.fail("resized an image that already fits")

    monkeypatch.setattr("midspan.data.sources.fit_array", never)
    got = image_set().load(np.array([3, 3, 1]), ImageSize(8, 8, 3))
    assert np.array_equal(got, IMAGES[[3, 3, 1]])


def test_load_grey_array_as_colour_repeats_the_channel() -> None:
    grey = image_set(source=ArraySource.of(IMAGES[..., :1], name="grey"))
    got = grey.load([2], ImageSize(8, 8, 3))
    assert np.array_equal(got[0], np.repeat(IMAGES[2, :, :, :1], 3, axis=2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": np.array(list("abcde"))}, r"ids of shape \(5,\) for 6 images"),
        ({"ids": np.array(list("abcdea"))}, "got 1 duplicates, first 'a'"),
        ({"labels": np.array(["ant", "bee"])}, "2 labels for 6 images; give each one"),
        ({"labels": np.array([0.5] * 6)}, "labels are float64, first .0.5.; expected names"),
        ({"labels": np.array(["ant", ""] * 3)}, "3 of 6 labels are empty, first row 1"),
        ({"class_names": ("ant", "bee")}, "'cat' is not among the 2 class names .'ant', 'bee'."),
        ({"class_names": ("ant", "bee", "cat", "bee")}, "1 class names are duplicates, first 'bee"),
        ({"split": np.array([0, 1])}, r"split of shape \(2,\)"),
        (
            {"split": np.array([0, 0, 0, 0, -1, 1])},
            "expected 0 .train. or 1 .test., got -1 in row 4",
        ),
        ({"split": np.array(["train"] * 6)}, "got 'train' in row 0"),
        ({"columns": {"drawer": np.arange(5)}}, r"column 'drawer' has shape \(5,\)"),
        ({"columns": {"drawer": np.array(5)}}, r"column 'drawer' has shape \(\)"),
    ],
)
def test_image_set_mismatched_columns_raise_data_error(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        image_set(**changes)


# ---- caching ------------------------------------------------------------------------------------


def test_cached_files_equal_loaded_files(write_image: WriteImage, tmp_path: Path) -> None:
    for place in range(5):
        write_image(f"{place}.png", value=40 * place, width=10 + place)
    files = folder(tmp_path)
    cached = files.cached(ImageSize(6, 7, 1, "crop"))
    rows = np.array([4, 0, 2])
    expected = files.load(rows, ImageSize(6, 7, 1, "crop"))
    assert np.array_equal(cached.load(rows, ImageSize(6, 7, 1, "crop")), expected)
    assert cached[rows].uri(0) == str(tmp_path / "4.png")
    assert expected[0, 0, 0, 0] == 160


def test_cached_images_are_not_read_again_nor_resized_twice(
    write_image: WriteImage, tmp_path: Path
) -> None:
    path = write_image("a.png", value=200, width=40, height=40)
    files = folder(tmp_path)
    cached = files.cached(ImageSize(4, 4, 3))
    other_size = cached.load([0], ImageSize(20, 20, 3))
    assert np.array_equal(other_size, files.load([0], ImageSize(20, 20, 3)))
    path.unlink()
    assert (cached.load([0], ImageSize(4, 4, 3)) == 200).all()
    with pytest.raises(ImageError, match=r"a\.png: cannot be read"):
        cached.load([0], ImageSize(20, 20, 3))  # not from the 4 x 4 ones
    assert cached.cached(ImageSize(4, 4, 3)) is cached


def test_cached_images_of_another_fit_are_decoded_again() -> None:
    wide = np.random.default_rng(1).integers(0, 256, (1, 8, 24, 1), dtype=np.uint8)
    images = ImageSet(ids=np.array(["a"]), source=ArraySource.of(wide, name="wide"))
    squashed = images.cached(ImageSize(8, 8, 1, "squash"))
    cropped = squashed.load([0], ImageSize(8, 8, 1, "crop"))
    assert np.array_equal(cropped[0], wide[0, :, 8:16])
    again = squashed.cached(ImageSize(8, 8, 1, "crop"))
    assert np.array_equal(again.load([0], ImageSize(8, 8, 1, "crop")), cropped)


def test_cached_drops_what_fails_only_when_decoded(
    write_image: WriteImage, tmp_path: Path, truncated_jpeg: bytes
) -> None:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/3.png"):
        write_image(name)
    (tmp_path / "dog" / "2.jpg").write_bytes(truncated_jpeg)
    files = folder(tmp_path)
    assert len(files) == 5
    assert files.skipped == ()
    with pytest.raises(ImageError, match=r"2\.jpg: cannot be decoded"):
        files.load(np.arange(5), ImageSize(4, 4, 3))

    got = files.load_readable([4, 3, 0], ImageSize(4, 4, 3))
    assert got.rows.tolist() == [4, 0]
    assert got.images.shape == (2, 4, 4, 3)
    assert [row for row, _ in got.failed] == [3]

    cached = files.cached(ImageSize(4, 4, 3))
    assert cached.ids.tolist() == ["cat/1.png", "cat/2.png", "dog/1.png", "dog/3.png"]
    assert cached.labels is not None
    assert cached.labels.tolist() == ["cat", "cat", "dog", "dog"]
    assert [item.path for item in cached.skipped] == ["dog/2.jpg"]
    assert "cannot be decoded" in cached.skipped[0].reason
    assert str(tmp_path) not in cached.skipped[0].reason


def test_cached_strict_set_with_a_broken_image_raises(
    write_image: WriteImage, tmp_path: Path, truncated_jpeg: bytes
) -> None:
    write_image("1.png")
    (tmp_path / "2.jpg").write_bytes(truncated_jpeg)
    files = folder(tmp_path, strict=True)
    for limit in (2**30, 0):
        with pytest.raises(ImageError, match=r"2\.jpg: cannot be decoded"):
            files.cached(ImageSize(4, 4, 3), limit=limit, folder=tmp_path / "cache")
    with pytest.raises(ImageError, match=r"2\.jpg"):
        files.load_readable([0, 1], ImageSize(4, 4, 3))


def test_cached_arrays_of_the_right_size_are_returned_unchanged() -> None:
    whole = image_set()
    assert whole.cached(ImageSize(8, 8, 3)) is whole
    smaller = whole.cached(ImageSize(4, 4, 1))
    assert isinstance(smaller.source, CachedSource)
    expected = whole.load(np.arange(6), ImageSize(4, 4, 1))
    assert np.array_equal(smaller.source.images, expected)
    assert smaller.uri(2) == "six.npz#2"
