"""The gate's page: verdict, numbers, groups, and names that are only text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from midspan.reports import gate_page
from tests.reports.html_walk import check_page

CHECKS = [
    {"name": "negative flips", "value": 0.031, "low": 0.02, "high": 0.04, "limit": 0.01},
    {"name": "retention", "value": 0.972, "low": 0.96, "high": 0.98, "limit": 0.95},
]


def document(verdict: str, **more: Any) -> dict[str, Any]:
    checks = [dict(check, verdict=verdict) for check in CHECKS]
    return {
        "verdict": verdict,
        "checks": checks,
        "groups": {},
        "labelled": True,
        "metric": "map",
        "n_queries": 1234,
        "worst": [],
        **more,
    }


@pytest.mark.parametrize("verdict", ["PASS", "INCONCLUSIVE", "FAIL"])
def test_gate_page_shows_verdict_and_numbers(tmp_path: Path, verdict: str) -> None:
    path = gate_page(document(verdict), tmp_path / "gate.html", command="midspan gate …")
    text = path.read_text(encoding="utf-8")
    check_page(text)
    for expected in (f"{verdict}:", "1,234", "3.1 %", "97.2 %", "at most 1.0 %", "midspan gate …"):
        assert expected in text


def test_gate_page_escapes_groups_and_queries(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    groups = {hostile: [dict(CHECKS[0], verdict="FAIL"), dict(CHECKS[1], verdict="PASS")]}
    path = gate_page(
        document("INCONCLUSIVE", groups=groups, worst=[hostile]), tmp_path / "gate.html"
    )
    text = path.read_text(encoding="utf-8")
    check_page(text)
    assert hostile not in text
    assert text.count("&lt;script&gt;") == 3  # twice in the table, once in the list
