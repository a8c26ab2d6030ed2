"""ArcFace: the angle to the true class must lead by a margin."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from midspan.losses.base import RecognitionLoss, at_label


class ArcFace(RecognitionLoss):
    """CE where the true class has s·cos(θ + m) instead of s·cos θ.

    Paper: arXiv:1801.07698. Defaults: scale 64, margin 0.5 rad (paper).
    Beyond θ = π − m, where cos(θ + m) would rise again, the target is cos θ − m·sin m; the value
    jumps there, the direction of the gradient does not turn.

    Args:
        scale: s, of the cosines.
        margin: m, added to the angle of the true class, in radians.

    Example:
        >>> import torch
        >>> from midspan.losses import ArcFace
        >>> loss = ArcFace.for_classes(10, dim=8)
        >>> value = loss.value(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        >>> value.ndim, bool(value.isfinite())
        (0, True)
    """

    shardable: ClassVar[bool] = True

    def __init__(self, *, scale: float = 64.0, margin: float = 0.5) -> None:
        super().__init__()
        self.scale = scale
        self.margin = margin

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        assert logits is not None
        own = logits.gather(1, labels.unsqueeze(1))  # (B, 1)
        return F.cross_entropy(at_label(logits, labels, self.margin_on(own)), labels)

    def margin_on(self, own: Tensor) -> Tensor:
        cos = own / self.scale
        sin = (1.0 - cos.square()).clamp_min(1e-7).sqrt()  # the slope of sqrt is infinite at 0
        turned = cos * math.cos(self.margin) - sin * math.sin(self.margin)
        guarded = cos - self.margin * math.sin(self.margin)
        target = turned.where(cos > math.cos(math.pi - self.margin), guarded)
        return self.scale * (target - cos)
