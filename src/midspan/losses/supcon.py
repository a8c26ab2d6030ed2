"""Supervised contrastive loss: all images of the own class against the whole batch."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.losses.base import RecognitionLoss


class SupCon(RecognitionLoss):
    """Mean over i of −(1/|P(i)|) Σ_{p∈P(i)} log e^{c_ip/τ} / Σ_{a≠i} e^{c_ia/τ}.

    Paper: arXiv:2004.11362 (its L_out). Default: temperature 0.1 (paper). Images whose class has no
    second one in the batch have no term; a batch without pairs gives 0.

    Args:
        temperature: τ, by which the cosines are divided.

    Example:
        >>> import torch
        >>> from midspan.losses import SupCon
        >>> loss = SupCon.for_classes(10, dim=8)
        >>> value = loss.value(torch.randn(4, 8), torch.tensor([0, 1, 2, 2]))
        >>> value.ndim, bool(value.isfinite())
        (0, True)
    """

    has_classifier: ClassVar[bool] = False

    def __init__(self, *, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def prepare(self, *, num_classes: int, dim: int) -> None:
        """Nothing to learn besides the encoder."""

    def logits(self, vectors: Tensor) -> None:
        return None

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        unit = F.normalize(vectors)
        itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        scores = (unit @ unit.T / self.temperature).masked_fill(itself, float("-inf"))  # (B, B)
        log_p = scores - torch.logsumexp(scores, dim=1, keepdim=True)
        same = (labels.unsqueeze(0) == labels.unsqueeze(1)) & ~itself
        counts = same.sum(1)
        sums = log_p.masked_fill(~same, 0.0).sum(1)
        paired = counts > 0
        return -(sums / counts.clamp_min(1)).sum() / paired.sum().clamp_min(1)
