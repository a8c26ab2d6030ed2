"""The same pixels give the same vectors, whichever way they come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from midspan.data import folder
from midspan.encoders import Encoder, build_encoder
from midspan.encoders.inputs import stacked
from midspan.errors import ConfigError, DataError, EncoderError


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    made = build_encoder(backbone="small-cnn", dim=8, seed=1, name="tiny")
    made.eval()
    return made


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for number in range(3):
        pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{number}.png")
    return root


def test_embed_any_form_of_the_same_images_gives_the_same_vectors(
    encoder: Encoder, photos: Path
) -> None:
    paths = sorted(photos.iterdir())
    opened = [Image.open(path) for path in paths]
    forms: list[Any] = [
        opened,
        tuple(paths),
        [str(path) for path in paths],
        [np.asarray(one) for one in opened],
        photos,
        str(photos),
        folder(photos),
        np.stack([np.asarray(one) for one in opened]),
    ]
    first = encoder.embed(opened, progress=False)
    assert first.ids.tolist() == ["0", "1", "2"]
    for form in forms[1:]:
        np.testing.assert_allclose(
            encoder.embed(form, progress=False).vectors, first.vectors, atol=1e-5
        )
    for one in (opened[1], paths[1], np.asarray(opened[1])):
        np.testing.assert_allclose(
            encoder.embed(one, progress=False).vectors, first.vectors[1:2], atol=1e-5
        )
    assert encoder.embed(paths[:1], progress=False).ids.tolist() == [str(paths[0])]


def test_stacked_layout_decides_what_three_axes_are() -> None:
    images = np.zeros((3, 5, 4), dtype=np.uint8)
    assert stacked(images).shape == (1, 3, 5, 4)
    assert stacked(images, layout="NHW").shape == (3, 5, 4, 1)
    assert stacked(images, layout="HWC").shape == (1, 3, 5, 4)
    with pytest.raises(EncoderError, match="layout = 'CHW'; expected one of HW, HWC"):
        stacked(images, layout="CHW")  # type: ignore[arg-type]
    with pytest.raises(EncoderError, match=r"images are uint8\(3, 5, 4\)"):
        stacked(images, layout="NHWC")


@pytest.mark.parametrize("shape", [(40, 50, 2), (32, 32, 5), (3, 40, 50), (20, 8, 8)])
def test_stacked_ambiguous_three_axes_require_a_layout(
    encoder: Encoder, shape: tuple[int, ...]
) -> None:
    images = np.zeros(shape, dtype=np.uint8)
    with pytest.raises(EncoderError, match="give layout = 'NHW' for a stack"):
        encoder.embed(images, progress=False)
    assert stacked(images, layout="NHW").shape == (*shape, 1)


def test_embed_unknown_device_raises_config_error(encoder: Encoder, photos: Path) -> None:
    with pytest.raises(ConfigError, match="device 'bla': expected 'cpu', 'cuda'"):
        encoder.embed(photos, device="bla", progress=False)


def test_images_of_other_values_raises_with_what_is_accepted(
    encoder: Encoder, photos: Path
) -> None:
    with pytest.raises(EncoderError, match="not a list of int, str"):
        encoder.embed(["a.png", 3], progress=False)  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"gone.png: no such file \(1 of 2 are missing\)"):
        encoder.embed([photos / "0.png", photos / "gone.png"], progress=False)
    with pytest.raises(EncoderError, match="layout = 'HWC' is for an array"):
        encoder.embed(photos, layout="HWC", progress=False)
