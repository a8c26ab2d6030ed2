from __future__ import annotations

import numpy as np
import pytest

from midspan.data import ImageSet
from midspan.data.decode import Pixels
from midspan.data.sources import ArraySource
from midspan.encoders import Encoder, build_encoder


@pytest.fixture
def images() -> Pixels:
    """30 small RGB pictures: noise over a slope, so that no two are alike."""
    noise = np.random.default_rng(7).integers(0, 120, (30, 32, 32, 3))
    slope = np.linspace(0, 120, 30)[:, None, None, None]
    return (noise + slope).astype(np.uint8)


@pytest.fixture
def image_set(images: Pixels) -> ImageSet:
    return ImageSet(
        ids=np.array([f"img{row:02d}" for row in range(30)]),
        source=ArraySource.of(images, name="test"),
        labels=np.array(list("abc"))[np.arange(30) % 3],
        split=(np.arange(30) >= 20).astype(np.uint8),
        columns={"camera": np.arange(30) % 2},
    )


@pytest.fixture
def encoder() -> Encoder:
    return build_encoder(backbone="small-cnn", dim=16, seed=1, name="tiny", settings={"width": 8})
