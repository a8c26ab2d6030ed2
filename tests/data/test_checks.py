from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from midspan.data import ImageSet, Skipped, check_evaluable, check_trainable, folder
from midspan.data.sources import ArraySource
from midspan.errors import DataError
from tests.data.conftest import WriteImage


def labelled(*labels: str) -> ImageSet:
    images = np.zeros((len(labels), 4, 4, 1), dtype=np.uint8)
    return ImageSet(
        ids=np.array([f"i{row}" for row in range(len(labels))]),
        source=ArraySource.of(images, name="set"),
        labels=np.array(labels, dtype=np.str_),
        class_names=("ant", "bee", "cat"),
    )


def test_checks_accept_two_classes_of_two_images() -> None:
    check_trainable(labelled("ant", "ant", "cat", "cat"))
    check_evaluable(labelled("ant", "ant", "cat", "cat"))
    check_evaluable(labelled("bee", "bee"))


def test_check_evaluable_one_image_per_class_raises_and_trainable_does_not() -> None:
    check_trainable(labelled("ant", "bee", "cat"))
    with pytest.raises(
        DataError, match="each of the 3 classes has one image only; evaluation sear"
    ):
        check_evaluable(labelled("ant", "bee", "cat"))


def test_check_trainable_single_class_raises_data_error(
    write_image: WriteImage, tmp_path: Path
) -> None:
    write_image("bee/1.png")
    write_image("bee/2.png")
    with pytest.raises(DataError, match="expected two or more classes, got 2 images of one, 'bee'"):
        check_trainable(folder(tmp_path))


@pytest.mark.parametrize("check", [check_trainable, check_evaluable])
def test_checks_without_images_or_labels_raise_data_error(
    check: Callable[[ImageSet], None],
) -> None:
    empty = labelled()
    with pytest.raises(DataError, match=r"(training|evaluation): expected images, got none$"):
        check(empty)
    flat = ImageSet(ids=empty.ids, source=empty.source, skipped=(Skipped("x.jpg", "is empty"),))
    with pytest.raises(DataError, match=r"1 could not be read, first x\.jpg: is empty"):
        check(flat)
    whole = labelled("ant", "bee")
    with pytest.raises(DataError, match=r"got no labels; put the images into class folders"):
        check(ImageSet(ids=whole.ids, source=whole.source))
