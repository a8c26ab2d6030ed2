from __future__ import annotations

import subprocess
import sys

from midspan import reports

HEAVY = ("torch", "matplotlib", "jinja2", "PIL", "scipy", "sklearn", "pyarrow")


def test_importing_the_room_loads_nothing_heavy() -> None:
    code = f"import sys, midspan.reports; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names() -> None:
    assert reports.__all__ == sorted(reports.__all__)
    assert all(hasattr(reports, name) for name in reports.__all__)
