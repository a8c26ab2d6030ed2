"""Tables, plots and one-file HTML pages from results."""

from typing import Any

from midspan.deprecation import renamed_attribute
from midspan.reports.compare_evidence import ComparisonEvidence, evidence
from midspan.reports.compare_page import Matrix, compare_page
from midspan.reports.demo_page import DemoResult, demo_page
from midspan.reports.gate_page import gate_page
from midspan.reports.live_upgrade import LiveUpgrade
from midspan.reports.tables import csv_text, rounded, write_csv

__all__ = [
    "ComparisonEvidence",
    "DemoResult",
    "LiveUpgrade",
    "Matrix",
    "compare_page",
    "csv_text",
    "demo_page",
    "evidence",
    "gate_page",
    "rounded",
    "write_csv",
]

_RENAMED = {"Evidence": "ComparisonEvidence"}


def __getattr__(name: str) -> Any:
    return globals()[renamed_attribute(__name__, name, _RENAMED)]
