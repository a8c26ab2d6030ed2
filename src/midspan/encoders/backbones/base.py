"""What every backbone tells the encoder about itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from midspan.data.decode import Channels
from midspan.encoders.preprocessing import Preprocessing

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Backbone(nn.Module):
    """Images (B, C, H, W) → a feature map (B, F, h, w) or pooled features (B, F).

    features: F. channels_last: whether weights and images are laid out so in memory, decided by
    measurement (see midspan.encoders.layout).
    """

    features: int
    channels_last: bool = False

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """Its name in BACKBONES and the settings that rebuild it without network or weights.

        Part of the fingerprint: a setting added later must be left out at its default.
        """
        raise NotImplementedError

    def preprocessing(self, *, size: int | None) -> Preprocessing | None:
        """The input it was made for, at its own size or the given one; None: it takes vectors."""
        raise NotImplementedError


def plain_preprocessing(*, size: int, channels: Channels) -> Preprocessing:
    """[-1, 1], for networks trained from scratch."""
    return Preprocessing(
        height=size, width=size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels
    )
