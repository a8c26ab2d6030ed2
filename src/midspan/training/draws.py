"""Random numbers for the images of a batch, of which a process takes those of its own images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """Drawn for the whole batch, then cut: an image gets the same whichever process loads it.

    A few numbers an image cost less than a generator for each, and all processes leave the
    generator in the same state.
    """

    generator: Generator  # on the CPU, so that a seed means the same on every device
    total: int  # images of the whole batch
    start: int  # of which start ≤ i < stop are here
    stop: int

    @classmethod
    def whole(cls, total: int, generator: Generator) -> Draws:
        return cls(generator, total, 0, total)

    def rand(self, *shape: int) -> Tensor:
        """(own images, *shape), uniform in [0, 1)."""
        every = torch.rand(self.total, *shape, generator=self.generator)
        return every[self.start : self.stop]

    def uniform(self, low: float, high: float) -> Tensor:
        """(own images,)"""
        return self.rand() * (high - low) + low

    def among(self, chosen: Tensor) -> Draws:
        """For those images alone that are `chosen`, (total,) true or false."""
        return Draws(
            self.generator,
            int(chosen.sum()),
            int(chosen[: self.start].sum()),
            int(chosen[: self.stop].sum()),
        )
