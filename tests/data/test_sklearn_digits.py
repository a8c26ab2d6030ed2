from __future__ import annotations

import sys

import numpy as np
import pytest

from midspan.data import digits
from midspan.errors import MissingDependency
from midspan.image_size import ImageSize


def test_digits_has_the_images_of_sklearn() -> None:
    images = digits()
    assert len(images) == 1797
    assert images.class_names == tuple("0123456789")
    assert images.train.labels is not None
    assert images.test.labels is not None
    assert np.unique(images.train.labels).tolist() == list("0123456")
    assert np.unique(images.test.labels).tolist() == list("789")
    pixels = images.load(np.arange(len(images)), ImageSize(8, 8, 1))
    assert (pixels.min(), pixels.max()) == (0, 255)


def test_digits_images_and_labels_are_aligned() -> None:
    """The mean picture of a digit's first half recognises most of its second half."""
    images = digits()
    assert images.labels is not None
    pixels = images.load(np.arange(len(images)), ImageSize(8, 8, 1))
    flat, half = pixels.reshape(len(images), -1).astype(float), len(images) // 2
    means = np.stack(
        [flat[:half][images.labels[:half] == str(digit)].mean(0) for digit in range(10)]
    )
    distances = ((flat[half:, None] - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1).astype(str) == images.labels[half:]).mean() > 0.8


def test_digits_without_scikit_learn_raises_missing_dependency(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependency, match=r"'digits' needs scikit-learn, .* pip install"):
        digits()
