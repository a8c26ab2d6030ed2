from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from midspan.errors import DataError, ImageError
from midspan.image_size import ImageSize
from midspan.reports.images import SIDE, ImageArray, check_images, data_uri, image_reader
from midspan.spaces import Embeddings, IntArray, Space, StrArray


def decoded(uri: str) -> Image.Image:
    head, _, body = uri.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


def test_data_uri_small_image_is_lossless() -> None:
    rng = np.random.default_rng(0)
    for channels, mode in ((1, "L"), (3, "RGB"), (4, "RGBA")):
        image = rng.integers(0, 256, size=(20, 32, channels), dtype=np.uint8)
        picture = decoded(data_uri(image))
        assert picture.mode == mode
        assert np.array_equal(np.asarray(picture).reshape(image.shape), image)


def test_data_uri_large_image_is_reduced() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, size=(224, 112, 3), dtype=np.uint8)
    uri = data_uri(image, side=64)
    assert decoded(uri).size == (32, 64)
    assert len(uri) < 5000  # noise, the worst case: 200 of them are 1 MB


def test_check_images_gives_grey_ones_a_channel() -> None:
    assert check_images(np.zeros((2, 5, 6), dtype=np.uint8), count=2).shape == (2, 5, 6, 1)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, 5, 6, 3), np.float32, "float32"),
        ((2, 5, 6, 2), np.uint8, "C 1, 3 or 4"),
        ((2, 0, 6, 3), np.uint8, "shape"),
        ((2, 5), np.uint8, "uint8"),
        ((3, 5, 6, 1), np.uint8, "3 images for 2 items"),
    ],
)
def test_check_images_wrong_arrays_raise_data_error(
    shape: tuple[int, ...], dtype: type, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        check_images(np.zeros(shape, dtype=dtype), count=2)


class Folder:
    """An image set as the data room gives it; the image of 'broken' cannot be read."""

    ids: StrArray = np.array(["b", "broken", "a"])

    def load(
        self,
        rows: IntArray | Sequence[int],
        size: ImageSize,
    ) -> ImageArray:
        (row,) = rows
        if row == 1:
            raise ImageError("broken: not an image")
        return np.full((1, *size.shape), row, dtype=np.uint8)


def items(*ids: str) -> Embeddings:
    return Embeddings(
        ids=np.array(ids), vectors=np.ones((len(ids), 2), np.float32), space=Space("s", 2)
    )


def test_images_of_a_set_are_matched_by_id() -> None:
    read = image_reader(items("a", "b", "c", "broken"), Folder())
    first, second, third, fourth = (read(row) for row in range(4))
    assert first is not None
    assert second is not None
    assert first.shape == (SIDE, SIDE, 3)
    assert (int(first.max()), int(second.max())) == (2, 0)
    assert third is None  # not in the set
    assert fourth is None  # not readable


def test_images_of_an_array_are_matched_by_row() -> None:
    read = image_reader(items("a", "b"), np.arange(2, dtype=np.uint8).reshape(2, 1, 1, 1))
    assert [int(image.max()) for image in (read(0), read(1)) if image is not None] == [0, 1]
    assert image_reader(items("a"), None)(0) is None
