"""From a backbone's features to the embedding: pooling, then a projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from midspan.errors import EncoderError

HEADS = {
    "linear": "midspan.encoders.heads:Linear",
    "linear-bn": "midspan.encoders.heads:LinearBN",
    "gem": "midspan.encoders.heads:GeM",
    "none": "midspan.encoders.heads:Pooled",
}


class Head(nn.Module):
    """Feature map (B, F, h, w) or features (B, F) → embedding (B, D)."""

    name: str

    def __init__(self, *, features: int, dim: int) -> None:
        super().__init__()
        self.features = features
        self.dim = dim


class Linear(Head):
    """Average pooling and one linear layer."""

    name = "linear"

    def __init__(self, *, features: int, dim: int) -> None:
        super().__init__(features=features, dim=dim)
        self.project = nn.Linear(features, dim)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.project(average(x))
        return z


class LinearBN(Head):
    """Average pooling, a linear layer without bias, batch norm: the head of AdvBCT's encoders."""

    name = "linear-bn"

    def __init__(self, *, features: int, dim: int) -> None:
        super().__init__(features=features, dim=dim)
        self.project = nn.Linear(features, dim, bias=False)
        self.bn = nn.BatchNorm1d(dim)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.bn(self.project(average(x)))
        return z


class GeM(Head):
    """Generalised mean pooling, (mean of x^p)^(1/p), and one linear layer.

    Radenović et al., arXiv:1711.02512: one learnt p for all channels that starts at 3.
    Values below 1e-6 are raised to it (the paper's features follow a ReLU).
    """

    name = "gem"

    def __init__(self, *, features: int, dim: int) -> None:
        super().__init__(features=features, dim=dim)
        self.p = nn.Parameter(torch.tensor(3.0))
        self.project = nn.Linear(features, dim)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            raise EncoderError(
                f"a gem head pools a feature map (B, F, h, w), but the backbone gives "
                f"{tuple(x.shape)}; set the backbone to give its map, or take the head 'linear'"
            )
        pooled = x.clamp(min=1e-6).pow(self.p).mean(dim=(2, 3)).pow(1.0 / self.p)  # (B, F)
        z: Tensor = self.project(pooled)
        return z


class Pooled(Head):
    """Average pooling alone: the backbone's features are the embedding."""

    name = "none"

    def __init__(self, *, features: int, dim: int) -> None:
        super().__init__(features=features, dim=dim)
        if dim != features:
            raise EncoderError(
                f"without a head the embedding has the backbone's {features} dims, not {dim}; "
                "leave dim out, or take the head 'linear'"
            )

    def forward(self, x: Tensor) -> Tensor:
        return average(x)


def average(x: Tensor) -> Tensor:
    return x.mean(dim=(2, 3)) if x.ndim == 4 else x
