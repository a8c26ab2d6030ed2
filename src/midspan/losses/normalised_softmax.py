"""Normalised softmax: cross-entropy of cosines divided by a temperature."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from midspan.losses.base import RecognitionLoss


class NormalisedSoftmax(RecognitionLoss):
    """CE(c / τ). Default τ = 0.05: the common released code of this loss.

    Args:
        temperature: By which the cosines are divided.

    Example:
        >>> import torch
        >>> from midspan.losses import NormalisedSoftmax
        >>> loss = NormalisedSoftmax.for_classes(10, dim=8)
        >>> value = loss.value(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        >>> value.ndim, bool(value.isfinite())
        (0, True)
    """

    shardable: ClassVar[bool] = True

    def __init__(self, *, temperature: float = 0.05) -> None:
        super().__init__()
        self.scale = 1.0 / temperature

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        assert logits is not None
        return F.cross_entropy(logits, labels)
