"""docs/heads.md and docs/benchmarks.md show what the heads tier measured, as it is now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_heads_page_tables_equal_the_result_files() -> None:
    found = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "heads_table.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr
