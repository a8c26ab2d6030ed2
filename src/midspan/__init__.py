"""midspan: change the embedding model of a visual search service while it goes on serving.

The front door is small and lazy: importing it loads neither torch nor a database.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from midspan.errors import MidspanError
from midspan.spaces import Embeddings, Space

__version__ = "0.1.0"

# name → where it lives; imported at first use
_LAZY = {
    "Client": "midspan.client:Client",
    "Gallery": "midspan.gallery:Gallery",
    "Upgrade": "midspan.upgrade:Upgrade",
    "data": "midspan.data",
    "evaluation": "midspan.evaluation",
    "load_encoder": "midspan.encoders:load_encoder",
    "train": "midspan.training:train",
    "compare": "midspan.evaluation:compare",
}

__all__ = [
    "Client",
    "Embeddings",
    "Gallery",
    "MidspanError",
    "Space",
    "Upgrade",
    "__version__",
    "compare",
    "data",
    "evaluation",
    "load_encoder",
    "train",
]

if TYPE_CHECKING:
    from midspan import data, evaluation
    from midspan.client import Client
    from midspan.encoders import load_encoder
    from midspan.evaluation import compare
    from midspan.gallery import Gallery
    from midspan.training import train
    from midspan.upgrade import Upgrade


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'midspan' has no attribute {name!r}")
    module, _, attribute = _LAZY[name].partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted(__all__)
