"""midspan: change the embedding model of a visual search service while it keeps serving.

    import midspan as ms

    old = ms.Embeddings.load("old.npy", space="resnet50-v1")
    new = ms.Embeddings.load("new.npy", space="clip-b32")
    bridge = ms.fit_bridge(old, new)

Everything here is imported at first use: `import midspan` loads neither torch nor a database.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from midspan import errors
from midspan.errors import (
    ClusterError,
    ConfigError,
    DataError,
    EncoderError,
    EvaluationError,
    EvidenceFailed,
    FormatError,
    GalleryError,
    ImageError,
    Interrupted,
    ItemError,
    LabelMismatch,
    MidspanError,
    MissingDependency,
    ProcessLost,
    RequestError,
    RunError,
    SpaceMismatch,
    SpaceMissing,
    StateChanged,
    StoreError,
    UnknownId,
    Unreachable,
    VectorError,
)
from midspan.spaces import Embeddings, Space

__version__ = "0.1.0"

# name → module, or module:attribute; imported at first use
_LAZY = {
    "Client": "midspan.client:Client",
    "Gallery": "midspan.gallery:Gallery",
    "Upgrade": "midspan.upgrade:Upgrade",
    "compare": "midspan.evaluation:compare",
    "evaluate": "midspan.evaluation:evaluate",
    "fit_bridge": "midspan.bridges:fit_bridge",
    "gate": "midspan.upgrade:gate",
    "load_bridge": "midspan.bridges:load_bridge",
    "load_encoder": "midspan.encoders:load_encoder",
    "train": "midspan.training:train",
    "bridges": "midspan.bridges",
    "data": "midspan.data",
    "encoders": "midspan.encoders",
    "evaluation": "midspan.evaluation",
    "gallery": "midspan.gallery",
    "losses": "midspan.losses",
    "methods": "midspan.methods",
    "upgrade": "midspan.upgrade",
}

__all__ = [
    "Client",
    "ClusterError",
    "ConfigError",
    "DataError",
    "Embeddings",
    "EncoderError",
    "EvaluationError",
    "EvidenceFailed",
    "FormatError",
    "Gallery",
    "GalleryError",
    "ImageError",
    "Interrupted",
    "ItemError",
    "LabelMismatch",
    "MidspanError",
    "MissingDependency",
    "ProcessLost",
    "RequestError",
    "RunError",
    "Space",
    "SpaceMismatch",
    "SpaceMissing",
    "StateChanged",
    "StoreError",
    "UnknownId",
    "Unreachable",
    "Upgrade",
    "VectorError",
    "__version__",
    "bridges",
    "compare",
    "data",
    "encoders",
    "errors",
    "evaluate",
    "evaluation",
    "fit_bridge",
    "gallery",
    "gate",
    "load_bridge",
    "load_encoder",
    "losses",
    "methods",
    "train",
    "upgrade",
]

if TYPE_CHECKING:
    from midspan import bridges, data, encoders, evaluation, gallery, losses, methods, upgrade
    from midspan.bridges import fit_bridge, load_bridge
    from midspan.client import Client
    from midspan.encoders import load_encoder
    from midspan.evaluation import compare, evaluate
    from midspan.gallery import Gallery
    from midspan.training import train
    from midspan.upgrade import Upgrade
    from midspan.upgrade.gate import gate


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'midspan' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependency("torch", extra="train", required_for=module) from error
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted(__all__)
