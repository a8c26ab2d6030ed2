"""Encoders: image (or feature vector) → vector in a space. Imports torch only when it is needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from midspan.encoders.backbones import BACKBONES
from midspan.encoders.load import load_embedder, load_encoder
from midspan.encoders.preprocessing import Preprocessing
from midspan.errors import MissingDependency

if TYPE_CHECKING:
    from midspan.encoders.build import build_encoder
    from midspan.encoders.encoder import Encoder
    from midspan.encoders.onnx import OnnxEncoder
    from midspan.encoders.onnx_export import export_onnx

__all__ = [
    "BACKBONES",
    "Encoder",
    "OnnxEncoder",
    "Preprocessing",
    "build_encoder",
    "export_onnx",
    "load_embedder",
    "load_encoder",
]

_LAZY = {
    "Encoder": "midspan.encoders.encoder",
    "OnnxEncoder": "midspan.encoders.onnx",
    "build_encoder": "midspan.encoders.build",
    "export_onnx": "midspan.encoders.onnx_export",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'midspan.encoders' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependency("torch", extra="train", required_for=name) from error
