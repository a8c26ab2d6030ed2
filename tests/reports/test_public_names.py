from __future__ import annotations

import subprocess
import sys

from midspan import reports

HEAVY = ("torch", "matplotlib", "jinja2", "PIL", "scipy", "sklearn", "pyarrow")


def test_import_reports_loads_no_heavy_library() -> None:
    code = f"import sys, midspan.reports; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reports_public_names_are_importable() -> None:
    assert reports.__all__ == sorted(reports.__all__)
    assert all(hasattr(reports, name) for name in reports.__all__)
