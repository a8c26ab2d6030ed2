"""Tables, plots and one-file HTML pages from results."""

from midspan.reports.compare_evidence import Evidence, evidence
from midspan.reports.compare_page import Matrix, compare_page
from midspan.reports.demo_page import DemoResult, demo_page
from midspan.reports.gate_page import gate_page
from midspan.reports.live_upgrade import LiveUpgrade
from midspan.reports.tables import csv_text, rounded, write_csv

__all__ = [
    "DemoResult",
    "Evidence",
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
