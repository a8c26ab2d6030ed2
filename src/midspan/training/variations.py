"""Variations: random damage to images, and a record of what was applied.

URL (Shi et al., CVPR 2020) blurs, occludes and rotates faces, each with probability 0.3. Images are
float (B, C, H, W), normalised. Departs: strengths are shares of the side, where the paper's kernels
of 3 to 11 px are made for faces of 112 px; a perspective warp replaces its 3-D poses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.config import look_up
from midspan.data import ImageSet
from midspan.losses.decorrelation import Decorrelation
from midspan.spaces import IntArray
from midspan.training.attributes import AttributeNet, mine
from midspan.training.batch_loader import BatchRandom
from midspan.training.distributed import SINGLE_PROCESS, Processes
from midspan.training.settings import VariationSettings

Variation = Callable[[Tensor, BatchRandom], Tensor]

VARIATIONS = {
    "blur": "midspan.training.variations:blur",
    "occlusion": "midspan.training.variations:occlusion",
    "perspective": "midspan.training.variations:perspective",
}

BLOCKS = 7  # a side, as in the paper


@dataclass(frozen=True)
class Variations:
    """The variations of a batch, and the loss that is learnt from them."""

    names: tuple[str, ...]
    probability: float
    known: Tensor | None = None  # (N, A) variations that the training images have by themselves
    decorrelation: Decorrelation | None = None  # None: augmentation alone

    def __call__(self, images: Tensor, rows: IntArray, rng: BatchRandom) -> tuple[Tensor, Tensor]:
        """Own images, and what each of the whole batch has: (B, M) 0 or 1, applied before known.

        rows (B,) are those of the whole batch.
        """
        images, applied = vary(images, names=self.names, probability=self.probability, rng=rng)
        if self.known is None:
            return images, applied
        own = self.known[torch.from_numpy(rows)].to(applied)
        return images, torch.cat([applied, own], dim=1)


def make_variations(
    settings: VariationSettings,
    *,
    images: ImageSet,
    dim: int,
    sub_embeddings: int,
    seed: int,
    processes: Processes = SINGLE_PROCESS,
) -> Variations:
    """As in the run file; attributes are mined once, from the images as they are."""
    for name in settings.names:
        look_up(VARIATIONS, name, what="variation")  # a wrong name is an error now
    known = None
    if settings.attributes is not None:
        net = AttributeNet.load(settings.attributes)
        known = processes.once(lambda: mine(net, images, threshold=settings.threshold))
    decorrelation = None
    if settings.variation_weight or settings.confusion_weight:
        decorrelation = Decorrelation(
            variations=len(settings.names) + (0 if known is None else known.shape[1]),
            sub_embeddings=sub_embeddings,
            dim=dim,
            seed=seed,
            variation_weight=settings.variation_weight,
            confusion_weight=settings.confusion_weight,
        )
    return Variations(settings.names, settings.probability, known, decorrelation)


def vary(
    images: Tensor, *, names: tuple[str, ...], probability: float, rng: BatchRandom
) -> tuple[Tensor, Tensor]:
    """Each variation independently on some of the images; (B, M) says which of the whole batch."""
    chosen = torch.rand(rng.total, len(names), generator=rng.generator) < probability  # (B, M)
    own = chosen[rng.start : rng.stop]
    for column, name in enumerate(names):
        if chosen[:, column].any():  # here or elsewhere: the draws are made by all
            rows = own[:, column].nonzero()[:, 0].to(images.device)
            change: Variation = look_up(VARIATIONS, name, what="variation")
            changed = change(images[rows], rng.subset(chosen[:, column]))
            images = images.index_copy(0, rows, changed)
    return images, chosen.float().to(images.device)


def blur(images: Tensor, rng: BatchRandom) -> Tensor:
    """Gaussian, σ from 2 % to 10 % of the side but at least half a pixel.

    As two products with a matrix an image: each image has its own σ, which no convolution allows.
    """
    height, width = images.shape[2:]
    share = rng.rand() * 0.08 + 0.02
    rows = _smoothing(height, share * height).to(images.device)  # (B, H, H)
    columns = _smoothing(width, share * width).to(images.device)  # (B, W, W)
    return rows.unsqueeze(1) @ images @ columns.unsqueeze(1).mT


def occlusion(images: Tensor, rng: BatchRandom) -> Tensor:
    """7 × 7 blocks, of which 10 to 50 % take the darkest value of the image."""
    height, width = images.shape[2:]
    share = rng.rand() * 0.4 + 0.1
    hidden = rng.rand(1, BLOCKS, BLOCKS) < share.view(-1, 1, 1, 1)
    mask = F.interpolate(hidden.float(), size=(height, width), mode="nearest").to(images.device)
    dark = images.amin(dim=(1, 2, 3), keepdim=True)
    return torch.where(mask > 0, dark, images)


def perspective(images: Tensor, rng: BatchRandom) -> Tensor:
    """Each corner moves by up to 20 % of the sides; what comes in from outside repeats the border.

    The distortion of torchvision's RandomPerspective moves them by up to 25 %, inwards only.
    """
    count, _, height, width = images.shape
    corners = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    moved = corners + (rng.rand(4, 2) * 0.8 - 0.4)
    h = homographies(corners, moved)  # (B, 3, 3)
    y = torch.linspace(-1, 1, height).view(-1, 1).expand(height, width)
    x = torch.linspace(-1, 1, width).view(1, -1).expand(height, width)
    points = torch.stack([x, y, torch.ones_like(x)], dim=2).view(-1, 3)  # (H·W, 3)
    there = points @ h.mT  # (B, H·W, 3)
    grid = (there[..., :2] / there[..., 2:]).view(count, height, width, 2)
    return F.grid_sample(images, grid.to(images.device), padding_mode="border", align_corners=True)


def homographies(corners: Tensor, moved: Tensor) -> Tensor:
    """(4, 2), (B, 4, 2) → (B, 3, 3) that take each corner to its moved place."""
    count = len(moved)
    x, y = corners[:, 0].expand(count, 4), corners[:, 1].expand(count, 4)
    u, v = moved[..., 0], moved[..., 1]
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    upper = torch.stack([x, y, one, zero, zero, zero, -u * x, -u * y], dim=2)
    lower = torch.stack([zero, zero, zero, x, y, one, -v * x, -v * y], dim=2)
    coefficients = torch.linalg.solve(torch.cat([upper, lower], 1), torch.cat([u, v], 1))  # (B, 8)
    return torch.cat([coefficients, torch.ones(count, 1)], dim=1).view(count, 3, 3)


def _smoothing(size: int, sigma: Tensor) -> Tensor:
    """(B,) → (B, size, size): Gaussian weights, rows that sum to one also at the border."""
    place = torch.arange(size, dtype=torch.float32)
    apart = (place.view(-1, 1) - place.view(1, -1)).square()
    weights = torch.exp(-apart / (2 * sigma.clamp_min(0.5).square()).view(-1, 1, 1))
    return weights / weights.sum(dim=2, keepdim=True)
