"""Variation decorrelation: each half of the sub-embeddings encodes one variation only."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from midspan.errors import ConfigError


class Decorrelation(nn.Module):
    """Masks V_t of K/2 sub-embeddings, one for each of M variations, and a classifier of them.

    The encoder learns that V_t⊙f predicts variation t and none of the others:
      variation   −Σ_t log p(u_t | V_t⊙f)
      confusion   −Σ_t Σ_{t'≠t} ½ [log p(u_t' = 0 | V_t⊙f) + log p(u_t' = 1 | V_t⊙f)]
    The classifier learns to predict every variation from every masked vector (`observer`): if it
    learnt only u_t under V_t, the confusion term would have no opponent.

    Paper: Shi et al., CVPR 2020. Defaults: both weights 2 (from memory). All in one backward: the
    encoder's terms see the classifier with detached weights, the classifier's own a detached
    encoder. The classifier has one hidden layer of 128 (ours; the paper does not say).
    """

    masks: Tensor  # (M, K) 0 or 1

    def __init__(
        self,
        *,
        variations: int,
        sub_embeddings: int,
        dim: int,
        seed: int = 0,
        variation_weight: float = 2.0,
        confusion_weight: float = 2.0,
        hidden: int = 128,
    ) -> None:
        super().__init__()
        self.variation_weight = variation_weight
        self.confusion_weight = confusion_weight
        chosen = draw_masks(variations, sub_embeddings=sub_embeddings, seed=seed)
        self.register_buffer("masks", chosen)
        self.classifier = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, variations)
        )

    def forward(self, vectors: Tensor, applied: Tensor) -> dict[str, Tensor]:
        """(B, D) with slices of length 1, (B, M) 0 or 1 → weighted terms, means over the batch."""
        masked = self.masked(vectors)  # (B, M, D)
        frozen = {name: value.detach() for name, value in self.classifier.named_parameters()}
        logits = functional_call(self.classifier, frozen, (masked,))  # (B, M, M)
        observed = self.classifier(masked.detach())
        targets = applied.unsqueeze(1).expand_as(observed)
        return {
            "variation": self.variation_weight * variation_loss(logits, applied),
            "confusion": self.confusion_weight * confusion_loss(logits),
            "observer": F.binary_cross_entropy_with_logits(observed, targets),
        }

    def masked(self, vectors: Tensor) -> Tensor:
        slices = vectors.view(len(vectors), 1, self.masks.shape[1], -1)  # (B, 1, K, D/K)
        return (slices * self.masks.unsqueeze(2)).flatten(2)


def variation_loss(logits: Tensor, applied: Tensor) -> Tensor:
    """Cross-entropy of the own variation under each mask, summed over the masks."""
    own = logits.diagonal(dim1=1, dim2=2)  # (B, M)
    return F.binary_cross_entropy_with_logits(own, applied, reduction="sum") / len(logits)


def confusion_loss(logits: Tensor) -> Tensor:
    """Never below M(M−1) ln 2, which is all p = ½: nothing is known of the other variations."""
    surprise = 0.5 * (F.softplus(logits) + F.softplus(-logits))  # −½[log p + log(1 − p)]
    return (surprise.sum() - surprise.diagonal(dim1=1, dim2=2).sum()) / len(logits)


def draw_masks(count: int, *, sub_embeddings: int, seed: int) -> Tensor:
    """(count, K) with K/2 ones in each row, no two rows the same."""
    half = sub_embeddings // 2
    halves = math.comb(sub_embeddings, half) if sub_embeddings % 2 == 0 and half else 0
    if count < 1 or halves < count:
        raise ConfigError(
            f"{count} variations and {sub_embeddings} sub-embeddings: each variation needs a "
            f"different half of them, and there are {halves}; set [encoder] sub_embeddings to an "
            "even number such as 8, or both weights of [variations] to 0"
        )
    generator = torch.Generator().manual_seed(seed)
    if halves <= 10_000:  # listed and drawn; beyond that two draws are hardly ever the same
        every = list(itertools.combinations(range(sub_embeddings), half))
        picks = [every[i] for i in torch.randperm(halves, generator=generator)[:count].tolist()]
    else:
        drawn: dict[tuple[int, ...], None] = {}
        while len(drawn) < count:
            order = torch.randperm(sub_embeddings, generator=generator)[:half]
            drawn[tuple(sorted(order.tolist()))] = None
        picks = list(drawn)
    masks = torch.zeros(count, sub_embeddings)
    for row, places in enumerate(picks):
        masks[row, list(places)] = 1.0
    return masks
