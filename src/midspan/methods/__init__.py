"""Ways of training a new encoder so that its vectors can be compared with the old ones."""

from midspan.methods.base import Batch, Method
from midspan.methods.old import OldArtifacts, OldClassifier

# name in a run file → class
METHODS = {
    "independent": "midspan.methods.independent:Independent",
    "bct": "midspan.methods.bct:BCT",
    "l2": "midspan.methods.l2:L2",
    "lce": "midspan.methods.lce:LCE",
    "hot_refresh": "midspan.methods.hot_refresh:HotRefresh",
    "unibct": "midspan.methods.unibct:UniBCT",
    "advbct": "midspan.methods.advbct:AdvBCT",
    "mixbct": "midspan.methods.mixbct:MixBCT",
    "simplex": "midspan.methods.simplex:Simplex",
}

__all__ = ["METHODS", "Batch", "Method", "OldArtifacts", "OldClassifier"]
