"""The contract of methods: named, weighted terms beside the recognition loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from midspan.methods.old import OldArtifacts


@dataclass(frozen=True, slots=True)
class Batch:
    """What the loop hands to a method at each step."""

    vectors: Tensor  # (B, D) new, as the encoder gives them: not normalised
    logits: Tensor | None  # (B, C) of the new classifier, without margin
    labels: Tensor  # (B,) classes of the new training set
    rows: Tensor  # (B,) rows of the new training set
    old: Tensor | None  # (B, D_old) unit old vectors of the same images, from the cache


class Method(nn.Module):
    """Hyper-parameters in `__init__`, keyword-only; what it learns is saved with the run."""

    uses_old: ClassVar[bool]
    uses_labels: ClassVar[bool]
    directions: ClassVar[tuple[str, ...]]  # "direct", "backward", "forward"

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        """Called once, before the first step."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Terms by name, already weighted; the loop adds them to the recognition loss."""
        raise NotImplementedError
