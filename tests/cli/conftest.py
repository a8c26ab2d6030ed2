from __future__ import annotations

import pytest

from midspan.cli import upgrade_sources


@pytest.fixture(autouse=True)
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `upgrade run` looks for half a second whether anybody searches: not so long here."""
    monkeypatch.setattr(upgrade_sources, "LOOK", 0.05)
