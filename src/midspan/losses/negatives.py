"""Distance-weighted negatives: as many easy ones as hard ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

NEAREST = 0.5  # smaller distances count as this: their weights would drown all others
FARTHEST = 1.4  # beyond, a negative gives no gradient any more


def distances(unit: Tensor) -> Tensor:
    """(B, D) unit vectors → (B, B) Euclidean; the root is safe at 0."""
    return (2.0 - 2.0 * unit @ unit.T).clamp_min(1e-8).sqrt()


def log_weights(d: Tensor, *, dim: int) -> Tensor:
    """log 1/q(d), q the density of distances on the sphere in `dim` dims; −inf beyond the cut.

    Wu et al., arXiv:1706.07567: q(d) ∝ d^(D−2) (1 − d²/4)^((D−3)/2), with the cut-offs 0.5 and 1.4
    of the reference code. `dim` is that of the vectors that were normalised: of a slice, if so.
    """
    near = d.clamp_min(NEAREST)
    tail = (1.0 - 0.25 * near.square()).clamp_min(1e-8)
    weights = (2.0 - dim) * near.log() - 0.5 * (dim - 3.0) * tail.log()
    return weights.masked_fill(d >= FARTHEST, float("-inf"))


def distance_weighted(vectors: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(anchors, positives, negatives): all pairs of one class, a negative drawn for each.

    Anchors without a negative inside the cut are left out. Draws from torch's global generator.
    """
    with torch.no_grad():
        unit = F.normalize(vectors)
        d = distances(unit)
        same = labels.unsqueeze(0) == labels.unsqueeze(1)
        weights = log_weights(d, dim=unit.shape[1]).masked_fill(same, float("-inf"))  # (B, B)
        usable = torch.isfinite(weights).any(1)
        pairs = same & usable.unsqueeze(1)
        pairs.fill_diagonal_(False)
        anchors, positives = pairs.nonzero(as_tuple=True)
        if not len(anchors):
            return anchors, positives, anchors
        peak = weights.amax(1, keepdim=True)
        chances = (
            (weights - peak)[anchors].exp().cpu()
        )  # on the CPU: a seed means the same anywhere
        negatives = torch.multinomial(chances, 1).squeeze(1).to(anchors.device)
    return anchors, positives, negatives
