"""The loss of Universal Representation Learning: sub-embeddings weighted by their confidence."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from midspan.errors import ConfigError
from midspan.losses.base import RecognitionLoss, at_label, cosines

MOMENTUM = 0.01  # of the running mean of the confidences


class Universal(RecognitionLoss):
    """CE over a_j − m·[j = y], with a_ij = (1/K) Σ_k s_ik ⟨f_ik, w_jk⟩, and λ · mean of s².

    f_ik and w_jk are the K slices of vector and class row, each of length 1, s_ik the confidences
    of a `confident` encoder. With K = 1 and a constant s it is CosFace with margin m / s.

    Paper: Shi et al., CVPR 2020 (Universal Representation Learning), Eq. 8. Defaults: margin 30 and
    weight 0.001 of the regulariser, from memory and a third-party notebook. The
    margin is in units of the logits. Both are meant for faces in 512 dims, with confidences around
    64: with few classes and small encoders take a fifth of the margin, and let the confidences
    start lower ([encoder] first_confidence).

    Args:
        margin: m, in units of the logits.
        regulariser: λ, weight of the mean of s².

    Example:
        >>> import torch
        >>> from midspan.losses import Universal
        >>> loss = Universal.for_classes(10, dim=8)
        >>> z, y = torch.randn(4, 8), torch.tensor([0, 1, 2, 2])
        >>> loss.value(z, y, confidence=torch.full((4, 1), 64.0)).ndim
        0
    """

    uses_confidence: ClassVar[bool] = True
    mean_confidence: Tensor

    def __init__(self, *, margin: float = 30.0, regulariser: float = 0.001) -> None:
        super().__init__()
        if margin < 0 or regulariser < 0:
            raise ConfigError(
                "[loss] name = 'universal': expected margin and regulariser of 0 or more, got "
                f"{margin} and {regulariser}"
            )
        self.margin = margin
        self.weight = regulariser
        self.register_buffer("mean_confidence", torch.zeros(()))  # 0: none seen yet

    def logits(self, vectors: Tensor) -> Tensor:
        """Without confidences all slices count the same: the mean confidence times the cosines."""
        return (self.typical_scale() or 1.0) * cosines(vectors, self.class_rows())

    def confident_logits(self, vectors: Tensor, confidence: Tensor | None) -> Tensor:
        seen = _required(confidence)
        if self.training:
            now = seen.detach().mean().to(self.mean_confidence.dtype)
            known = self.mean_confidence > 0
            self.mean_confidence.copy_(
                torch.where(known, self.mean_confidence.lerp(now, MOMENTUM), now)
            )
        return _weighted(vectors, self.class_rows(), seen)

    def regulariser(self, confidence: Tensor | None) -> Tensor:
        return self.weight * _required(confidence).square().mean()

    def part(
        self,
        vectors: Tensor,
        labels: Tensor,
        dims: slice,
        *,
        confidence: Tensor | None = None,
        classes: Tensor | None = None,
    ) -> Tensor:
        """Of the sub-embeddings inside of these dims, with their own confidences."""
        if classes is not None:
            raise ConfigError(
                f"[train] own_classes = true cannot be used with {type(self).__name__}"
            )
        seen = _required(confidence)
        width = vectors.shape[1] // seen.shape[1]
        if dims.start % width or dims.stop % width:
            raise ConfigError(
                f"dims {dims.start} to {dims.stop} cut through sub-embeddings of {width} dims; "
                "make [encoder] sub_embeddings a multiple of [train] learners"
            )
        own = seen[:, dims.start // width : dims.stop // width]
        logits = _weighted(vectors[:, dims], self.class_rows()[:, dims], own)
        value: Tensor = self(vectors=vectors[:, dims], logits=logits, labels=labels)
        return value

    def typical_scale(self) -> float:
        return float(self.mean_confidence)

    def forward(self, *, vectors: Tensor, logits: Tensor | None, labels: Tensor) -> Tensor:
        assert logits is not None
        return F.cross_entropy(at_label(logits, labels, -self.margin), labels)


def _weighted(vectors: Tensor, rows: Tensor, confidence: Tensor) -> Tensor:
    """(B, D), (C, D), (B, K) → (B, C). One product over all slices: s goes with the vector."""
    count = confidence.shape[1]
    units = F.normalize(vectors.view(len(vectors), count, -1), dim=2)  # (B, K, D/K)
    row_units = F.normalize(rows.view(len(rows), count, -1), dim=2)  # (C, K, D/K)
    return F.linear((units * (confidence / count).unsqueeze(2)).flatten(1), row_units.flatten(1))


def _required(confidence: Tensor | None) -> Tensor:
    if confidence is None:
        raise ConfigError(
            "the loss 'universal' requires confidences, but the encoder gives none; set [encoder] "
            "confident = true"
        )
    return confidence
