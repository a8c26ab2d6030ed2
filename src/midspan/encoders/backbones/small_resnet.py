"""A small ResNet for 28-64 px images: trains on a CPU in minutes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from midspan.data.decode import Channels
from midspan.encoders.backbones.base import Backbone, Size, plain_preprocessing
from midspan.encoders.preprocessing import Preprocessing


class SmallResNet(Backbone):
    """Basic-block ResNet (He et al., arXiv:1512.03385), four stages of width 1, 2, 4, 8.

    Departs: one 3x3 stem with stride 2 and no max pooling (7x7 and pooling leave nothing of 32 px;
    stride 1 is 7 times slower on a CPU), a quarter of ResNet-18's width, one block a stage.
    """

    def __init__(self, *, channels: Channels = 3, width: int = 16, blocks: int = 1) -> None:
        super().__init__()
        self.channels = channels
        self.width = width
        self.blocks = blocks
        self.features = 8 * width
        # Fewer channels: oneDNN's backward writes past its memory (torch 2.13, AVX2, one thread).
        self.channels_last = width >= 8
        self.stem = _convolution(channels, width, stride=2)
        self.stem_bn = nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        inputs = width
        for stage in range(4):
            outputs = width * 2**stage
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(_ResidualBlock(inputs, outputs, stride=stride))
                inputs = outputs
        self.stages = nn.Sequential(*stages)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_bn(self.stem(x)), inplace=True)
        features: Tensor = self.stages(x)  # (B, 8 width, H/16, W/16)
        return features

    def trainable_blocks(self) -> list[nn.Module]:
        return [nn.ModuleList([self.stem, self.stem_bn]), *self.stages.children()]

    def config(self) -> dict[str, Any]:
        return {
            "name": "small-resnet",
            "channels": self.channels,
            "width": self.width,
            "blocks": self.blocks,
        }

    def preprocessing(self, *, size: Size | None) -> Preprocessing:
        return plain_preprocessing(size=size or 32, channels=self.channels)


class _ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, stride=stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _convolution(outputs, outputs, stride=1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                _convolution(inputs, outputs, stride=stride, kernel=1), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x), inplace=True)


def _convolution(inputs: int, outputs: int, *, stride: int, kernel: int = 3) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
