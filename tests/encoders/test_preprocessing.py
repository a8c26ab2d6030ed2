from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midspan.data.decode import Pixels
from midspan.encoders import Preprocessing
from midspan.errors import EncoderError, FormatError

RGB = Preprocessing(height=3, width=5, channels=3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))


def slow_reference(images: Pixels, p: Preprocessing) -> np.ndarray[Any, Any]:
    out = np.empty((len(images), p.channels, p.height, p.width))
    for b in range(len(images)):
        for c in range(p.channels):
            for y in range(p.height):
                for x in range(p.width):
                    out[b, c, y, x] = (images[b, y, x, c] / 255 - p.mean[c]) / p.std[c]
    return out


@given(seed=st.integers(0, 1000), batch=st.integers(0, 4), channels=st.sampled_from([1, 3]))
def test_preprocessing_torch_and_numpy_equal_the_equation(
    seed: int, batch: int, channels: int
) -> None:
    p = RGB
    if channels == 1:
        p = replace(RGB, channels=1, mean=(0.1,), std=(0.7,))
    shape = (batch, 3, 5, channels)
    images = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    expected = slow_reference(images, p)
    tensor = p.tensor(images)
    assert tensor.shape == expected.shape
    assert str(tensor.dtype) == "torch.float32"
    np.testing.assert_allclose(tensor.numpy(), expected, atol=2e-6)
    array = p.array(images)
    assert array.dtype == np.float32
    assert array.flags.c_contiguous
    np.testing.assert_allclose(array, expected, atol=2e-6)


def test_preprocessing_does_not_change_the_images() -> None:
    images = np.full((2, 3, 5, 3), 9, dtype=np.uint8)
    images.flags.writeable = False
    RGB.tensor(images).zero_()
    RGB.array(images)[:] = 0
    assert (images == 9).all()


@pytest.mark.parametrize(
    "images", [np.zeros((1, 3, 5, 1), np.uint8), np.zeros((1, 3, 5, 3)), np.zeros((3, 5), np.uint8)]
)
def test_preprocessing_other_shapes_or_types_raise_encoder_error(
    images: np.ndarray[Any, Any],
) -> None:
    with pytest.raises(EncoderError, match=r"expected images uint8 \(B, 3, 5, 3\)"):
        RGB.tensor(images)
    with pytest.raises(EncoderError, match="expected images uint8"):
        RGB.array(images)


def test_preprocessing_json_round_trip_is_equal() -> None:
    again = Preprocessing.from_dict(RGB.to_dict(), source="here")
    assert again == RGB
    assert again.to_json() == RGB.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": 0}, "0 x 5 px"),
        ({"channels": 2}, "channels"),
        ({"mean": [0.5]}, "1 means and 3 standard deviations for 3 channels"),
        ({"std": [0.1, 0.0, 0.1]}, "above zero"),
        ({"std": [0.1, float("nan"), 0.1]}, "above zero"),
        ({"fit": "stretch"}, "fit"),
        ({"colour": "bgr"}, "no setting 'colour'"),
        ({"width": "wide"}, "expected int"),
    ],
)
def test_preprocessing_broken_setting_is_named_in_the_error(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        Preprocessing.from_dict({**RGB.to_dict(), **change}, source="a/config.json")
    assert str(caught.value).startswith("a/config.json: ")
