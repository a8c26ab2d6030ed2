"""Augmentation on tensors: each is a function (images, draws) → images of the same shape.

Images are float (B, C, H, W), normalised; pixels from outside the image repeat the border.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.config import look_up
from midspan.training.batch_loader import BatchRandom

Augmentation = Callable[[Tensor, BatchRandom], Tensor]

AUGMENTATIONS = {
    "affine": "midspan.training.augment:affine",
    "shift": "midspan.training.augment:shift",
    "flip": "midspan.training.augment:flip",
    "erase": "midspan.training.augment:erase",
    "light": "midspan.training.augment:light",
}


def chain(names: Sequence[str]) -> list[Augmentation]:
    return [look_up(AUGMENTATIONS, name, what="augmentation") for name in names]


def affine(images: Tensor, rng: BatchRandom) -> Tensor:
    """Rotate by ±10°, scale by 0.85 … 1.15, shift by ±10 %."""
    count = len(images)
    angle = rng.uniform(-math.pi / 18, math.pi / 18)
    scale = rng.uniform(0.85, 1.15)
    shift_x, shift_y = rng.uniform(-0.2, 0.2), rng.uniform(-0.2, 0.2)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    rows = torch.stack([cos, -sin, shift_x, sin, cos, shift_y], dim=1).view(count, 2, 3)
    grid = F.affine_grid(rows.to(images.device), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def shift(images: Tensor, rng: BatchRandom) -> Tensor:
    """Move by up to 10 % of each side in whole pixels: padding and a random crop, as re-id does."""
    height, width = images.shape[2:]
    pad_y, pad_x = max(1, round(0.1 * height)), max(1, round(0.1 * width))
    top = (rng.rand() * (2 * pad_y + 1)).floor().long()  # (B,)
    left = (rng.rand() * (2 * pad_x + 1)).floor().long()
    padded = F.pad(images, (pad_x, pad_x, pad_y, pad_y), mode="replicate")
    y = (top.view(-1, 1) + torch.arange(height)).to(images.device)  # (B, H)
    x = (left.view(-1, 1) + torch.arange(width)).to(images.device)  # (B, W)
    batch = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    # advanced indices are put in front: (B, H, W, C)
    return padded[batch, :, y.unsqueeze(2), x.unsqueeze(1)].permute(0, 3, 1, 2)


def flip(images: Tensor, rng: BatchRandom) -> Tensor:
    """Mirror half of the images left to right. Not for letters and signs."""
    chosen = (rng.rand() < 0.5).to(images.device)
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(3), images)


def erase(images: Tensor, rng: BatchRandom) -> Tensor:
    """Blank one random box of 10 … 40 % of each side in half of the images."""
    height, width = images.shape[2:]
    tall = rng.uniform(0.1, 0.4) * height
    wide = rng.uniform(0.1, 0.4) * width
    top = rng.rand() * (height - tall)
    left = rng.rand() * (width - wide)
    chosen = rng.rand() < 0.5
    y = torch.arange(height).view(1, -1, 1)
    x = torch.arange(width).view(1, 1, -1)
    inside = (
        (y >= top.view(-1, 1, 1))
        & (y < (top + tall).view(-1, 1, 1))
        & (x >= left.view(-1, 1, 1))
        & (x < (left + wide).view(-1, 1, 1))
        & chosen.view(-1, 1, 1)
    )  # (B, H, W)
    return images.masked_fill(inside.unsqueeze(1).to(images.device), 0.0)


def light(images: Tensor, rng: BatchRandom) -> Tensor:
    """Contrast × 0.7 … 1.3 and brightness ± 0.3, in units of the normalised image."""
    contrast = rng.uniform(0.7, 1.3).view(-1, 1, 1, 1)
    brightness = rng.uniform(-0.3, 0.3).view(-1, 1, 1, 1)
    return images * contrast.to(images.device) + brightness.to(images.device)
