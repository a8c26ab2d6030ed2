"""Plain softmax: cross-entropy of a linear classifier with bias on the raw embedding."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.losses.base import RecognitionLoss


class Softmax(RecognitionLoss):
    """The classifier of AdvBCT's benchmark. No hyper-parameters."""

    normalised: ClassVar[bool] = False
    shardable: ClassVar[bool] = True
    has_bias: ClassVar[bool] = True

    def prepare(self, *, num_classes: int, dim: int) -> None:
        super().prepare(num_classes=num_classes, dim=dim)
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def logits_of(self, vectors: Tensor, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(vectors, rows, self.bias if bias is None else bias)

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        assert logits is not None
        return F.cross_entropy(logits, labels)
