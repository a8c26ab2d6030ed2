"""Precomputed features in: a head over a frozen foundation model trains in seconds."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from midspan.encoders.backbones.base import Backbone, Size
from midspan.errors import ConfigError


class Vectors(Backbone):
    """The vectors as they are, or one hidden layer (linear, BN, ReLU) over them.

    inputs: their dim. hidden: width of the hidden layer, 0 for none. source: fingerprint of the
    space they come from; if given, vectors of any other space are refused.
    """

    def __init__(self, *, inputs: int, hidden: int = 0, source: str = "") -> None:
        super().__init__()
        if inputs < 1 or hidden < 0:
            raise ConfigError(f"vectors: inputs {inputs} and hidden {hidden} make no network")
        self.inputs = inputs
        self.hidden = hidden
        self.source = source
        self.features = hidden or inputs
        self.layers: nn.Module = nn.Identity()
        if hidden:
            self.layers = nn.Sequential(
                nn.Linear(inputs, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)
            )

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.layers(x)  # (B, F)
        return features

    def config(self) -> dict[str, Any]:
        return {
            "name": "vectors",
            "inputs": self.inputs,
            "hidden": self.hidden,
            "source": self.source,
        }

    def preprocessing(self, *, size: Size | None) -> None:
        if size is not None:
            raise ConfigError(f"the vectors backbone takes no images, so no size (got {size})")
