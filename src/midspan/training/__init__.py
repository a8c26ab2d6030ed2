"""Training runs: one run file in, one run folder out."""

from midspan.training.runs import RunFolder, RunSummary, list_runs
from midspan.training.settings import RunConfig
from midspan.training.train import RunResult, train

__all__ = ["RunConfig", "RunFolder", "RunResult", "RunSummary", "list_runs", "train"]
