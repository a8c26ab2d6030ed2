"""Training runs: one run file in, one run folder out."""

from midspan.training.folders import RunFolder, RunSummary, list_runs
from midspan.training.run import RunResult, train
from midspan.training.settings import RunConfig

__all__ = ["RunConfig", "RunFolder", "RunResult", "RunSummary", "list_runs", "train"]
