"""Benchmarks: every method by one protocol, from a plan to rows."""

from midspan.training.bench.benchmark import BenchResult, bench, read_results
from midspan.training.bench.plan import Run, make_plan
from midspan.training.bench.settings import CASES, BenchSettings, read_settings

__all__ = [
    "CASES",
    "BenchResult",
    "BenchSettings",
    "Run",
    "bench",
    "make_plan",
    "read_results",
    "read_settings",
]
