"""Old vectors of the same views that the new encoder sees."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.encoders import Encoder, Preprocessing
from midspan.errors import ConfigError
from midspan.spaces import IntArray
from midspan.training.mixing import Mixing

# (images as shown, their rows, what was mixed) → (b, D_old) unit
OldView = Callable[[Tensor, IntArray, Mixing | None], Tensor]


class ShownView:
    """The frozen old encoder on the images that the new one sees: augmented, varied, mixed.

    They are converted to the size, channels and normalisation of the old encoder.
    """

    def __init__(self, old: Encoder, *, shown: Preprocessing) -> None:
        if not old.takes_images:
            raise ConfigError(
                f"[old] views = 'shown': the old encoder {old.name!r} takes vectors, not the "
                "images that are shown; set views = 'cached'"
            )
        self._old = old.eval().requires_grad_(False)
        self.shown = shown

    def to(self, device: torch.device) -> None:
        self._old.to(device)

    @torch.no_grad()
    def __call__(self, images: Tensor, rows: IntArray, mixing: Mixing | None) -> Tensor:
        if self._old.device != images.device:
            self.to(images.device)
        vectors = self._old(converted(images, self.shown, self._old.preprocessing))
        return F.normalize(vectors.float())


class FeatureView:
    """The old head on cached features of its own backbone, mixed as the new one's are."""

    def __init__(self, old: Encoder, *, load: Callable[[IntArray], Tensor]) -> None:
        self._old = old.eval().requires_grad_(False)
        self._load = load  # rows → (b, F_old)

    @torch.no_grad()
    def __call__(self, images: Tensor, rows: IntArray, mixing: Mixing | None) -> Tensor:
        features = self._load(rows).to(images.device)
        if mixing is not None:
            features = mixing(features)
        return F.normalize(self._old.from_features(features).float())


def converted(images: Tensor, source: Preprocessing, target: Preprocessing) -> Tensor:
    """Convert network input from one preprocessing to another."""
    if source == target:
        return images
    pixels = images * _row(source.std, images) + _row(source.mean, images)  # 0 … 1
    if (source.height, source.width) != (target.height, target.width):
        pixels = F.interpolate(
            pixels,
            size=(target.height, target.width),
            mode="bilinear",
            align_corners=False,
            antialias=True,
        )
    if source.channels > target.channels:
        pixels = pixels.mean(1, keepdim=True)
    elif source.channels < target.channels:
        pixels = pixels.expand(-1, target.channels, -1, -1)
    return (pixels - _row(target.mean, images)) / _row(target.std, images)


def _row(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(1, -1, 1, 1)
