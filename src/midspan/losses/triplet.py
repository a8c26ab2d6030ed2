"""Triplet loss: the positive nearer than the negative, by a margin."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from midspan.losses.base import RecognitionLoss
from midspan.losses.negatives import distance_weighted


class Triplet(RecognitionLoss):
    """[d_ap − d_an + m]₊ over all pairs of a class, mean over the active ones.

    Default: margin 0.2 (FaceNet, arXiv:1503.03832). Departs: negatives are drawn by distance
    (arXiv:1706.07567) instead of semi-hard ones, and distances are not squared.

    Args:
        margin: By which the positive must be nearer than the negative.

    Example:
        >>> import torch
        >>> from midspan.losses import Triplet
        >>> loss = Triplet.for_classes(10, dim=8)
        >>> value = loss.value(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        >>> value.ndim, bool(value.isfinite())
        (0, True)
    """

    has_classifier: ClassVar[bool] = False

    def __init__(self, *, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = margin

    def prepare(self, *, num_classes: int, dim: int) -> None:
        """Nothing to learn besides the encoder."""

    def logits(self, vectors: Tensor) -> None:
        return None

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        unit = F.normalize(vectors)
        anchors, positives, negatives = distance_weighted(vectors, labels)
        if not len(anchors):
            return unit.sum() * 0.0
        near = (unit[anchors] - unit[positives]).square().sum(1).clamp_min(1e-8).sqrt()
        far = (unit[anchors] - unit[negatives]).square().sum(1).clamp_min(1e-8).sqrt()
        losses = F.relu(near - far + self.margin)
        return losses.sum() / (losses > 0).sum().clamp_min(1)
