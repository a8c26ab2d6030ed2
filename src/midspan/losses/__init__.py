"""Recognition losses: what an encoder learns from labels, before any thought of compatibility.

Every loss is a plain `nn.Module` for any PyTorch loop: `CosFace.for_classes(100, dim=128)` creates
its class weights, and `loss.value(z, y)` is one number.
"""

from typing import Any

from midspan.deprecation import renamed_attribute
from midspan.losses.arcface import ArcFace
from midspan.losses.base import RecognitionLoss
from midspan.losses.cosface import CosFace
from midspan.losses.margin import Margin
from midspan.losses.metric_learning import MetricLearning
from midspan.losses.normalised_softmax import NormalisedSoftmax
from midspan.losses.proxy_anchor import ProxyAnchor
from midspan.losses.proxy_nca import ProxyNCA
from midspan.losses.softmax import Softmax
from midspan.losses.supcon import SupCon
from midspan.losses.triplet import Triplet
from midspan.losses.universal import Universal

# name in a run file → class
LOSSES = {
    "softmax": "midspan.losses.softmax:Softmax",
    "normalised-softmax": "midspan.losses.normalised_softmax:NormalisedSoftmax",
    "cosface": "midspan.losses.cosface:CosFace",
    "arcface": "midspan.losses.arcface:ArcFace",
    "universal": "midspan.losses.universal:Universal",
    "margin": "midspan.losses.margin:Margin",
    "triplet": "midspan.losses.triplet:Triplet",
    "proxy-nca": "midspan.losses.proxy_nca:ProxyNCA",
    "proxy-anchor": "midspan.losses.proxy_anchor:ProxyAnchor",
    "supcon": "midspan.losses.supcon:SupCon",
    "metric-learning": "midspan.losses.metric_learning:MetricLearning",
}

__all__ = [
    "LOSSES",
    "ArcFace",
    "CosFace",
    "Margin",
    "MetricLearning",
    "NormalisedSoftmax",
    "ProxyAnchor",
    "ProxyNCA",
    "RecognitionLoss",
    "Softmax",
    "SupCon",
    "Triplet",
    "Universal",
]

_RENAMED = {"URL": "Universal"}


def __getattr__(name: str) -> Any:
    return globals()[renamed_attribute(__name__, name, _RENAMED)]
