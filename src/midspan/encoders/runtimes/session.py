"""An open graph, whatever runtime computes it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midspan.config import look_up
from midspan.encoders.runtimes import GRAPH_RUNTIMES
from midspan.errors import MissingDependency


@dataclass(frozen=True, slots=True)
class GraphSession:
    run: Callable[[Any], Any]  # (B, …) float32 → (B, D)
    shape: tuple[Any, ...]  # of the input; no integer where any length is possible
    type: str  # of the input, "tensor(float)"
    metadata: Mapping[str, str]
    device: str
    runtime: str
    version: str  # of the runtime


def open_session(
    path: Path, *, device: str | None, runtime: str = "onnx", workers: int = 1
) -> GraphSession:
    """workers: threads that call `run` at the same time, each with its share of the processors."""
    opener = look_up(GRAPH_RUNTIMES, runtime, what="runtime")
    opened: GraphSession = opener(path, device=device, workers=workers)
    return opened


def import_extra(library: str, *, required_for: str, extra: str = "onnx") -> Any:
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise MissingDependency(library, extra=extra, required_for=required_for) from error
