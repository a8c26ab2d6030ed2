from __future__ import annotations

from typing import Any

import pytest
import torch

from midspan.encoders import Preprocessing, build_encoder
from midspan.errors import ConfigError, EncoderError


def test_build_encoder_has_the_documented_defaults() -> None:
    encoder = build_encoder(backbone="small-resnet")
    assert encoder.name == "small-resnet"
    assert encoder.dim == 128
    assert encoder.normalise
    assert encoder.training
    p = encoder.preprocessing
    assert (p.height, p.width, p.channels) == (32, 32, 3)
    assert encoder.architecture()["backbone"]["width"] == 16


def test_build_encoder_seed_decides_the_weights_only() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first = build_encoder(backbone="small-cnn", seed=5)
    assert torch.equal(torch.rand(2), expected)
    second = build_encoder(backbone="small-cnn", seed=5)  # the global generator is elsewhere now
    assert build_encoder(backbone="small-cnn", seed=6).fingerprint() != first.fingerprint()
    assert first.fingerprint() == second.fingerprint()
    torch.manual_seed(1)
    third = build_encoder(backbone="small-cnn")
    torch.manual_seed(1)
    assert build_encoder(backbone="small-cnn").fingerprint() == third.fingerprint()


def test_build_encoder_without_a_head_has_the_dim_of_the_backbone() -> None:
    encoder = build_encoder(backbone="small-cnn", head="none", settings={"width": 4})
    assert encoder.dim == 16
    with pytest.raises(EncoderError, match="16 dims, not 128"):
        build_encoder(backbone="small-cnn", head="none", dim=128, settings={"width": 4})


def test_build_encoder_takes_rectangular_preprocessing() -> None:
    preprocessing = Preprocessing(
        height=64, width=32, channels=3, fit="crop", mean=(0.1, 0.2, 0.3), std=(1, 1, 1)
    )
    encoder = build_encoder(backbone="small-resnet", preprocessing=preprocessing)
    assert encoder.preprocessing == preprocessing


GREY = Preprocessing(height=32, width=32, channels=1, mean=(0.5,), std=(0.5,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "small-rensnet"}, "did you mean 'small-resnet'"),
        ({"backbone": "small-cnn", "head": "gemm"}, "did you mean 'gem'"),
        ({"backbone": "small-cnn", "settings": {"widht": 8}}, "did you mean 'width'"),
        ({"backbone": "small-cnn", "settings": {"width": "wide"}}, "expected int"),
        ({"backbone": "small-cnn", "channels": 4}, "expected one of 1, 3"),
        ({"backbone": "vectors"}, "requires a value for 'inputs'"),
        ({"backbone": "vectors", "size": 32, "settings": {"inputs": 4}}, "takes no images"),
        ({"backbone": "vectors", "preprocessing": GREY, "settings": {"inputs": 4}}, "takes vector"),
        ({"backbone": "vectors", "settings": {"inputs": 0}}, "make no network"),
        ({"backbone": "small-cnn", "preprocessing": GREY}, "1 channels, backbone .* takes 3"),
        ({"backbone": "small-cnn", "channels": 1, "size": 9, "preprocessing": GREY}, "not both"),
        ({"backbone": "small-cnn:large"}, "has no setting 'model'"),
        ({"backbone": "hf"}, "a model name or a config"),
    ],
)
def test_build_encoder_mistake_is_named_in_the_error(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_encoder(**arguments)
