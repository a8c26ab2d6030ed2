"""Recognition losses: what an encoder learns from labels, before any thought of compatibility."""

from midspan.losses.base import RecognitionLoss

# name in a run file → class
LOSSES = {
    "softmax": "midspan.losses.softmax:Softmax",
    "normalised-softmax": "midspan.losses.normalised_softmax:NormalisedSoftmax",
    "cosface": "midspan.losses.cosface:CosFace",
    "arcface": "midspan.losses.arcface:ArcFace",
    "metric-learning": "midspan.losses.metric_learning:MetricLearning",
}

__all__ = ["LOSSES", "RecognitionLoss"]
