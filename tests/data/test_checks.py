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


def test_what_may_be_trained_and_evaluated_on() -> None:
    check_trainable(labelled("ant", "ant", "cat", "cat"))
    check_evaluable(labelled("ant", "ant", "cat", "cat"))
    check_evaluable(labelled("bee", "bee"))


def test_one_image_per_class_can_be_trained_on_but_not_evaluated() -> None:
    check_trainable(labelled("ant", "bee", "cat"))
    with pytest.raises(
        DataError, match="each of the 3 classes has one image only; evaluation sear"
    ):
        check_evaluable(labelled("ant", "bee", "cat"))


def test_one_class_folder(write_image: WriteImage, tmp_path: Path) -> None:
    write_image("bee/1.png")
    write_image("bee/2.png")
    with pytest.raises(DataError, match="all 2 images are of one class, 'bee'; training learns"):
        check_trainable(folder(tmp_path))


@pytest.mark.parametrize("check", [check_trainable, check_evaluable])
def test_no_images_or_no_labels(check: Callable[[ImageSet], None]) -> None:
    empty = labelled()
    with pytest.raises(DataError, match=r"no images: (training|evaluation) wants some$"):
        check(empty)
    flat = ImageSet(ids=empty.ids, source=empty.source, skipped=(Skipped("x.jpg", "is empty"),))
    with pytest.raises(DataError, match=r"1 could not be read, first x\.jpg: is empty"):
        check(flat)
    whole = labelled("ant", "bee")
    with pytest.raises(DataError, match=r"have no labels, .* put them into class folders"):
        check(ImageSet(ids=whole.ids, source=whole.source))
