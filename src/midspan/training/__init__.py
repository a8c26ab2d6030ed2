"""Training runs: one run file in, one run folder out. Only training itself needs torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from midspan.errors import MissingDependency
from midspan.training.folders import RunFolder, RunSummary, list_runs
from midspan.training.settings import RunConfig

if TYPE_CHECKING:
    from midspan.training.run import RunResult, train

__all__ = ["RunConfig", "RunFolder", "RunResult", "RunSummary", "list_runs", "train"]

_LAZY = ("RunResult", "train")  # of run.py


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'midspan.training' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("midspan.training.run"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependency("torch", extra="train", required_for="training") from error
