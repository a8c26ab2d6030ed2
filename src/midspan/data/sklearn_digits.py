"""scikit-learn's handwritten digits: a real image set for tests that take seconds."""

from __future__ import annotations

import numpy as np

from midspan.data.images import ImageSet
from midspan.data.sources import ArraySource
from midspan.errors import MissingDependency

FIRST_TEST_DIGIT = 7


def digits() -> ImageSet:
    """1,797 digits of 8 x 8 grey pixels, ink = 255; 0-6 are training classes, 7-9 test classes.

    Returns:
        The images, with a split.

    Raises:
        MissingDependency: scikit-learn is not installed.

    Example:
        >>> import midspan as ms
        >>> images = ms.data.digits()
        >>> len(images), len(images.test), images.labels[:3].tolist()
        (1797, 533, ['0', '1', '2'])
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingDependency(
            "scikit-learn", extra="dev", required_for="the image set 'digits'"
        ) from error
    bunch = load_digits()
    images = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]  # given as 0 … 16
    return ImageSet(
        ids=np.array([f"digits#{row}" for row in range(len(images))]),
        source=ArraySource.of(images, name="digits"),
        labels=bunch.target.astype(np.str_),
        split=(bunch.target >= FIRST_TEST_DIGIT).astype(np.uint8),
    )
