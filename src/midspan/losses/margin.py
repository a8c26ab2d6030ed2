"""Margin loss: positives inside a learnt boundary, negatives outside, each by a margin."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from midspan.losses.base import RecognitionLoss
from midspan.losses.negatives import distance_weighted


class Margin(RecognitionLoss):
    """([d_ap − β + α]₊ + [β − d_an + α]₊) over all pairs, divided by the number of active terms.

    Paper: arXiv:1706.07567, with its distance-weighted negatives. Defaults: margin α = 0.2,
    boundary β = 1.2, learnt (paper; the released code of Divide & Conquer leaves β out of the
    optimiser, so there it stays constant). Positive and negative terms are counted separately.

    Args:
        margin: Around the boundary.
        boundary: β, where the learnt distance between right and wrong starts.
        per_class: A boundary for each class instead of one for all.

    Example:
        >>> import torch
        >>> from midspan.losses import Margin
        >>> loss = Margin.for_classes(10, dim=8)
        >>> value = loss.value(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        >>> value.ndim, bool(value.isfinite())
        (0, True)
    """

    has_classifier: ClassVar[bool] = False

    def __init__(
        self, *, margin: float = 0.2, boundary: float = 1.2, per_class: bool = False
    ) -> None:
        super().__init__()
        self.margin = margin
        self.boundary = boundary
        self.per_class = per_class
        self.beta: nn.Parameter | None = None  # (C,) or (1,)

    def prepare(self, *, num_classes: int, dim: int) -> None:
        self.beta = nn.Parameter(torch.full((num_classes if self.per_class else 1,), self.boundary))

    def logits(self, vectors: Tensor) -> None:
        return None

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        if self.beta is None:
            raise RuntimeError("Margin.prepare was not called")
        unit = F.normalize(vectors)
        anchors, positives, negatives = distance_weighted(vectors, labels)
        if not len(anchors):
            return unit.sum() * 0.0  # no pairs: 0 that still has a gradient
        near = (unit[anchors] - unit[positives]).square().sum(1).clamp_min(1e-8).sqrt()
        far = (unit[anchors] - unit[negatives]).square().sum(1).clamp_min(1e-8).sqrt()
        beta = self.beta[labels[anchors]] if self.per_class else self.beta
        pull = F.relu(near - beta + self.margin)
        push = F.relu(beta - far + self.margin)
        active = (pull > 0).sum() + (push > 0).sum()
        return (pull.sum() + push.sum()) / active.clamp_min(1)
