"""The contract of methods: named, weighted terms beside the recognition loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from midspan.methods.old import OldArtifacts


@dataclass(frozen=True, slots=True)
class Batch:
    """What the loop hands to a method at each step."""

    vectors: Tensor  # (B, D) new, as the encoder gives them: not normalised
    logits: Tensor | None  # (B, C) of the new classifier, without margin; None if it is sharded
    labels: Tensor  # (B,) classes of the new training set
    rows: Tensor  # (B,) rows of the new training set
    old: Tensor | None  # (B, D_old) unit old vectors of the same images, from the cache
    class_rows: Tensor | None = None  # (C, D) of the new classifier, not normalised
    epoch: int = 0  # from 0
    progress: float = 0.0  # share of all steps that are done, 0 ≤ p < 1


class Method(nn.Module):
    """Hyper-parameters in `__init__`, keyword-only; what it learns is saved with the run."""

    uses_old: ClassVar[bool]
    uses_labels: ClassVar[bool]
    uses_classifier: bool = False  # wants Batch.logits or class_rows; may follow from the settings
    directions: tuple[str, ...]  # "direct", "backward", "forward"; may follow from the settings

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        """Called once, before the first step."""

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Terms by name, already weighted; the loop adds them to the recognition loss."""
        raise NotImplementedError

    def mix(self, vectors: Tensor, *, old: Tensor | None, labels: Tensor) -> Tensor:
        """The vectors (B, D) that the recognition loss sees in place of the encoder's own."""
        return vectors

    def fixed_rows(self) -> Tensor | None:
        """Class rows (C, D) that the recognition loss must keep; None: it learns its own."""
        return None

    def maps(self) -> Mapping[str, nn.Module]:
        """Learnt maps by direction, "backward" (new → old) and "forward" (old → new)."""
        return {}
