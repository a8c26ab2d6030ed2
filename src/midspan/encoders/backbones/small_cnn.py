"""A small convolutional network for 28-64 px images: the fastest to train."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from midspan.data.decode import Channels
from midspan.encoders.backbones.base import Backbone, Size, plain_preprocessing
from midspan.encoders.preprocessing import Preprocessing


class SmallCNN(Backbone):
    """Four 3x3 convolutions, the first three with stride 2, each with BN and ReLU.

    Own design, own defaults. width: channels of the first layer; the last has four times as many.
    """

    def __init__(self, *, channels: Channels = 3, width: int = 32) -> None:
        super().__init__()
        self.channels = channels
        self.width = width
        self.features = 4 * width
        self.channels_last = width >= 8  # small_resnet.py says why
        self.layers = nn.Sequential(
            *_layer(channels, width, stride=2),
            *_layer(width, 2 * width, stride=2),
            *_layer(2 * width, 4 * width, stride=2),
            *_layer(4 * width, 4 * width, stride=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)  # (B, 4 width, H/8, W/8)
        return features

    def config(self) -> dict[str, Any]:
        return {"name": "small-cnn", "channels": self.channels, "width": self.width}

    def preprocessing(self, *, size: Size | None) -> Preprocessing:
        return plain_preprocessing(size=size or 32, channels=self.channels)


def _layer(inputs: int, outputs: int, *, stride: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
