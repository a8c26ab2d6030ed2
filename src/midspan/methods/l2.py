"""L2: every new vector stays near the old vector of the same image. The plain baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.methods.base import Batch, Method
from midspan.methods.old import OldArtifacts
from midspan.methods.transformation import Maps


class L2(Method):
    """weight · mean_i max(0, ‖ẑ_new - ẑ_old‖ - dead_zone)², unit vectors, with recognition.

    If the dims differ, one linear map a direction is learnt along, and the term is the mean of the
    two: new vectors in the old space, old vectors in the new one.

    Defaults: weight 10 (MixBCT's code for this baseline); dead_zone 0, the plain squared distance
    (MixBCT's code offers it). The baseline φ_l2 of LCE (ICCV 2021), not proposed as a method there.
    Departs: openBCT's variant trains with this term alone; set [train] recognition_weight = 0 for
    that. MixBCT's dead zone is linear beyond its edge, ours is squared, so that 0 gives L2.

    Args:
        weight: Of the term.
        dead_zone: Distance that costs nothing.

    Example:
        >>> import torch
        >>> from midspan.methods import L2
        >>> _ = torch.manual_seed(0)
        >>> old, labels = torch.randn(40, 8), torch.arange(40) % 4
        >>> compat = L2.for_old(old, labels, dim=8)
        >>> terms = compat(torch.randn(40, 8), labels, old=old, rows=torch.arange(40))
        >>> sorted(terms)
        ['l2']
    """

    uses_old: ClassVar[bool] = True
    directions: tuple[str, ...] = ("direct",)

    def __init__(self, *, weight: float = 10.0, dead_zone: float = 0.0) -> None:
        super().__init__()
        if dead_zone < 0:
            raise ConfigError(
                f"l2: expected dead_zone >= 0, got {dead_zone}; unit vectors are 0 to 2"
            )
        self.weight = weight
        self.dead_zone = dead_zone
        self.learnt: Maps | None = None

    def prepare(self, *, old: OldArtifacts | None, num_classes: int, dim: int) -> None:
        if old is None:
            raise ConfigError("l2 needs the old encoder: name its run or its vectors in [old]")
        if old.space.dim != dim:
            self.learnt = Maps(old, dim=dim, depth=0)
            self.directions = ("backward", "forward")

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        assert batch.old is not None
        new, old = batch.vectors, batch.old.detach()
        if self.learnt is not None:
            value = 0.5 * (
                self._distance(self.learnt.to_old(new), old)
                + self._distance(new, self.learnt.to_new(old))
            )
        else:
            value = self._distance(new, old)
        return {"l2": self.weight * value}

    def maps(self) -> Mapping[str, nn.Module]:
        return {} if self.learnt is None else self.learnt.by_direction()

    def _distance(self, one: Tensor, other: Tensor) -> Tensor:
        difference = F.normalize(one) - F.normalize(other)  # (B, D)
        if self.dead_zone == 0:
            return difference.square().sum(1).mean()
        # the norm's gradient at 0 is taken as 0, and 0 lies in the dead zone anyway
        beyond: Tensor = torch.linalg.vector_norm(difference, dim=1) - self.dead_zone
        return beyond.clamp_min(0).square().mean()
