"""Bridges: maps between two spaces that already exist, fitted on pairs of vectors.

    bridge = Ridge().fit(old, new)          # pairs are found by id
    mapped = bridge.transform(old_gallery)  # embeddings in the new space
    bridge.save("old-to-new")               # safetensors + JSON
    bridge = load_bridge("old-to-new")

Applying a bridge needs NumPy only; fitting `mlp`, `rbt` and `fct` needs torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# From the simplest to the richest: the order in which `fit_auto` breaks near-ties.
BRIDGES = {
    "procrustes": "midspan.bridges.procrustes:Procrustes",
    "ridge": "midspan.bridges.ridge:Ridge",
    "low-rank": "midspan.bridges.low_rank:LowRank",
    "lambda-orthogonal": "midspan.bridges.lambda_orthogonal:LambdaOrthogonal",
    "local": "midspan.bridges.local:Local",
    "kernel": "midspan.bridges.kernel:Kernel",
    "blend": "midspan.bridges.blend:Blend",
    "mlp": "midspan.bridges.mlp:MLP",
    "rbt": "midspan.bridges.rbt:RBT",
    "fct": "midspan.bridges.fct:FCT",
}

# name → where it lives; imported at first use, so that one bridge does not load them all
_LAZY = {
    "FCT": "midspan.bridges.fct",
    "MLP": "midspan.bridges.mlp",
    "RBT": "midspan.bridges.rbt",
    "Blend": "midspan.bridges.blend",
    "Bridge": "midspan.bridges.base",
    "Comparison": "midspan.bridges.compare",
    "Confidence": "midspan.bridges.confidence",
    "GalleryEnsemble": "midspan.bridges.ensemble",
    "Kernel": "midspan.bridges.kernel",
    "LambdaOrthogonal": "midspan.bridges.lambda_orthogonal",
    "Local": "midspan.bridges.local",
    "LowRank": "midspan.bridges.low_rank",
    "Procrustes": "midspan.bridges.procrustes",
    "Ridge": "midspan.bridges.ridge",
    "ScoreMap": "midspan.bridges.calibration",
    "Selection": "midspan.bridges.select",
    "calibrate": "midspan.bridges.calibration",
    "compare_bridges": "midspan.bridges.compare",
    "export_onnx": "midspan.bridges.onnx_export",
    "fit_auto": "midspan.bridges.select",
    "fit_bridge": "midspan.bridges.fit",
    "keep_false_accept_rate": "midspan.bridges.calibration",
    "load_bridge": "midspan.bridges.files",
    "rejection_curve": "midspan.bridges.rejection",
    "risk_coverage": "midspan.bridges.rejection",
}

__all__ = [
    "BRIDGES",
    "FCT",
    "MLP",
    "RBT",
    "Blend",
    "Bridge",
    "Comparison",
    "Confidence",
    "GalleryEnsemble",
    "Kernel",
    "LambdaOrthogonal",
    "Local",
    "LowRank",
    "Procrustes",
    "Ridge",
    "ScoreMap",
    "Selection",
    "calibrate",
    "compare_bridges",
    "export_onnx",
    "fit_auto",
    "fit_bridge",
    "keep_false_accept_rate",
    "load_bridge",
    "rejection_curve",
    "risk_coverage",
]

if TYPE_CHECKING:
    from midspan.bridges.base import Bridge
    from midspan.bridges.blend import Blend
    from midspan.bridges.calibration import ScoreMap, calibrate, keep_false_accept_rate
    from midspan.bridges.compare import Comparison, compare_bridges
    from midspan.bridges.confidence import Confidence
    from midspan.bridges.ensemble import GalleryEnsemble
    from midspan.bridges.fct import FCT
    from midspan.bridges.files import load_bridge
    from midspan.bridges.fit import fit_bridge
    from midspan.bridges.kernel import Kernel
    from midspan.bridges.lambda_orthogonal import LambdaOrthogonal
    from midspan.bridges.local import Local
    from midspan.bridges.low_rank import LowRank
    from midspan.bridges.mlp import MLP
    from midspan.bridges.onnx_export import export_onnx
    from midspan.bridges.procrustes import Procrustes
    from midspan.bridges.rbt import RBT
    from midspan.bridges.rejection import rejection_curve, risk_coverage
    from midspan.bridges.ridge import Ridge
    from midspan.bridges.select import Selection, fit_auto


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'midspan.bridges' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
