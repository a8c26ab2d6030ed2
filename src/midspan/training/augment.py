"""Augmentation on tensors: each is a function (images, draws) → images of the same shape.

Images are float (B, C, H, W), normalised; what moves in from outside repeats the border.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.config import look_up
from midspan.training.draws import Draws

Augmentation = Callable[[Tensor, Draws], Tensor]

AUGMENTATIONS = {
    "affine": "midspan.training.augment:affine",
    "flip": "midspan.training.augment:flip",
    "erase": "midspan.training.augment:erase",
    "light": "midspan.training.augment:light",
}


def chain(names: Sequence[str]) -> list[Augmentation]:
    return [look_up(AUGMENTATIONS, name, what="augmentation") for name in names]


def affine(images: Tensor, draws: Draws) -> Tensor:
    """Turn by ±10°, scale by 0.85 … 1.15, shift by ±10 %: what a camera or a hand does."""
    count = len(images)
    angle = draws.uniform(-math.pi / 18, math.pi / 18)
    scale = draws.uniform(0.85, 1.15)
    shift_x, shift_y = draws.uniform(-0.2, 0.2), draws.uniform(-0.2, 0.2)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    rows = torch.stack([cos, -sin, shift_x, sin, cos, shift_y], dim=1).view(count, 2, 3)
    grid = F.affine_grid(rows.to(images.device), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def flip(images: Tensor, draws: Draws) -> Tensor:
    """Mirror half of the images left to right. Not for letters and signs."""
    chosen = (draws.rand() < 0.5).to(images.device)
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(3), images)


def erase(images: Tensor, draws: Draws) -> Tensor:
    """Blank one random box of 10 … 40 % of each side in half of the images."""
    height, width = images.shape[2:]
    tall = draws.uniform(0.1, 0.4) * height
    wide = draws.uniform(0.1, 0.4) * width
    top = draws.rand() * (height - tall)
    left = draws.rand() * (width - wide)
    chosen = draws.rand() < 0.5
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


def light(images: Tensor, draws: Draws) -> Tensor:
    """Contrast × 0.7 … 1.3 and brightness ± 0.3, in units of the normalised image."""
    contrast = draws.uniform(0.7, 1.3).view(-1, 1, 1, 1)
    brightness = draws.uniform(-0.3, 0.3).view(-1, 1, 1, 1)
    return images * contrast.to(images.device) + brightness.to(images.device)
