"""Plain softmax: cross-entropy of a linear classifier on the raw embedding."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.losses.base import RecognitionLoss


class Softmax(RecognitionLoss):
    """CE(rows·z), or CE(rows·z + bias).

    Default: no bias, as the classifier of AdvBCT's released code.

    Args:
        bias: Learn a bias for each class.

    Example:
        >>> import torch
        >>> from midspan.losses import Softmax
        >>> loss = Softmax.for_classes(10, dim=8)
        >>> value = loss.value(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        >>> value.ndim, bool(value.isfinite())
        (0, True)
    """

    normalised: ClassVar[bool] = False
    shardable: ClassVar[bool] = True

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        self.has_bias = bias

    def prepare(self, *, num_classes: int, dim: int) -> None:
        super().prepare(num_classes=num_classes, dim=dim)
        if self.has_bias:
            self.bias = nn.Parameter(torch.zeros(num_classes))

    def logits_of(self, vectors: Tensor, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(vectors, rows, self.bias if bias is None else bias)

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        assert logits is not None
        return F.cross_entropy(logits, labels)
