"""What every backbone reports about itself to the encoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from midspan.data.decode import Channels
from midspan.encoders.preprocessing import Preprocessing

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Size = int | tuple[int, int]  # of the input images: the side of a square, or (height, width)


class Backbone(nn.Module):
    """Images (B, C, H, W) → a feature map (B, F, h, w) or pooled features (B, F).

    features: F. channels_last: whether weights and images are laid out so in memory, decided by
    measurement (see midspan.encoders.layout).
    """

    features: int
    channels_last: bool = False

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def trainable_blocks(self) -> list[nn.Module]:
        """Its parts from input to output, of which the last ones may train alone; []: unknown."""
        return []

    def config(self) -> dict[str, Any]:
        """Its name in BACKBONES and the settings that rebuild it without network or weights.

        Part of the fingerprint: a setting added later must be left out at its default.
        """
        raise NotImplementedError

    def preprocessing(self, *, size: Size | None) -> Preprocessing | None:
        """The input it is made for, at its own size or the given one; None: it takes vectors."""
        raise NotImplementedError


def sides(size: Size) -> tuple[int, int]:
    """(height, width)"""
    return (size, size) if isinstance(size, int) else size


def plain_preprocessing(*, size: Size, channels: Channels) -> Preprocessing:
    """[-1, 1], for networks trained from scratch."""
    height, width = sides(size)
    return Preprocessing(
        height=height,
        width=width,
        channels=channels,
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
    )
