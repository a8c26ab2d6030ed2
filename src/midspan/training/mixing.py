"""Mixtures of two images in a batch: they have no label, but any encoder can embed them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True, slots=True)
class Mixing:
    """The last M rows of a batch of B become mixtures with other rows of it.

    Shares are uniform: mixup (arXiv:1710.09412) with α = 1.
    """

    partners: Tensor  # (M,) places in the batch
    share: Tensor  # (M,) of the image itself, 0 … 1

    @classmethod
    def draw(cls, total: int, part: float, generator: Generator) -> Mixing | None:
        count = int(part * total)
        if count == 0:
            return None
        partners = torch.randint(total - 1, (count,), generator=generator)
        own = torch.arange(total - count, total)
        partners = partners + (partners >= own)  # any place but its own
        return cls(partners, torch.rand(count, generator=generator))

    @property
    def count(self) -> int:
        return len(self.partners)

    def __call__(self, images: Tensor) -> Tensor:
        """(B, …) → (B, …); partners are taken as they were before."""
        whole = len(images) - self.count
        share = self.share.view(-1, *(1,) * (images.ndim - 1)).to(images)
        mixed = torch.lerp(images[self.partners.to(images.device)], images[whole:], share)
        return torch.cat([images[:whole], mixed])
