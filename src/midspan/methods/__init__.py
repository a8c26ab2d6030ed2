"""Ways of training a new encoder so that its vectors can be compared with the old ones.

Every method is a plain `nn.Module` for any PyTorch loop: `AdvBCT.for_old(old_vectors, labels,
dim=128)` prepares it, and `compat(z, y, old=old_z)` gives its weighted terms by name.
"""

from midspan.methods.advbct import AdvBCT
from midspan.methods.base import Batch, Method, Mixed
from midspan.methods.bct import BCT
from midspan.methods.hot_refresh import HotRefresh
from midspan.methods.independent import Independent
from midspan.methods.l2 import L2
from midspan.methods.lce import LCE
from midspan.methods.mixbct import MixBCT
from midspan.methods.old import OldArtifacts, OldClassifier
from midspan.methods.simplex import Simplex
from midspan.methods.trusted_matching import TrustedMatching
from midspan.methods.unibct import UniBCT

# name in a run file → class
METHODS = {
    "independent": "midspan.methods.independent:Independent",
    "bct": "midspan.methods.bct:BCT",
    "l2": "midspan.methods.l2:L2",
    "lce": "midspan.methods.lce:LCE",
    "hot-refresh": "midspan.methods.hot_refresh:HotRefresh",
    "unibct": "midspan.methods.unibct:UniBCT",
    "advbct": "midspan.methods.advbct:AdvBCT",
    "mixbct": "midspan.methods.mixbct:MixBCT",
    "simplex": "midspan.methods.simplex:Simplex",
    "trusted-matching": "midspan.methods.trusted_matching:TrustedMatching",
}

__all__ = [
    "BCT",
    "L2",
    "LCE",
    "METHODS",
    "AdvBCT",
    "Batch",
    "HotRefresh",
    "Independent",
    "Method",
    "MixBCT",
    "Mixed",
    "OldArtifacts",
    "OldClassifier",
    "Simplex",
    "TrustedMatching",
    "UniBCT",
]
