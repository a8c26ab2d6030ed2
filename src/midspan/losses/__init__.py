"""Recognition losses: what an encoder learns from labels, before any thought of compatibility."""

from midspan.losses.base import RecognitionLoss

# name in a run file → class
LOSSES = {
    "softmax": "midspan.losses.softmax:Softmax",
    "normalised-softmax": "midspan.losses.normalised_softmax:NormalisedSoftmax",
    "cosface": "midspan.losses.cosface:CosFace",
    "arcface": "midspan.losses.arcface:ArcFace",
    "url": "midspan.losses.url:URL",
    "margin": "midspan.losses.margin:Margin",
    "triplet": "midspan.losses.triplet:Triplet",
    "proxy-nca": "midspan.losses.proxy_nca:ProxyNCA",
    "proxy-anchor": "midspan.losses.proxy_anchor:ProxyAnchor",
    "supcon": "midspan.losses.supcon:SupCon",
    "metric-learning": "midspan.losses.metric_learning:MetricLearning",
}

__all__ = ["LOSSES", "RecognitionLoss"]
