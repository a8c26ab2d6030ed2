"""CosFace: the cosine of the true class must lead by a margin."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.losses.base import RecognitionLoss, at_label


class CosFace(RecognitionLoss):
    """CE over s·(c_j − m·[j = y]).

    Paper: arXiv:1801.09414. Defaults: scale 64, margin 0.35 (paper). Data sets of a few hundred
    classes and small encoders need less of both.

    Args:
        scale: s, of the cosines.
        margin: m, by which the true class must lead, in cosines.

    Example:
        >>> import torch
        >>> from midspan.losses import CosFace
        >>> loss = CosFace.for_classes(10, dim=8)
        >>> value = loss.value(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        >>> value.ndim, bool(value.isfinite())
        (0, True)
    """

    shardable: ClassVar[bool] = True

    def __init__(self, *, scale: float = 64.0, margin: float = 0.35) -> None:
        super().__init__()
        self.scale = scale
        self.margin = margin

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        assert logits is not None
        return F.cross_entropy(at_label(logits, labels, -self.scale * self.margin), labels)

    def margin_on(self, own: Tensor) -> Tensor:
        return torch.full_like(own, -self.scale * self.margin)
