from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from midspan.cli import main, upgrade_sources


@pytest.fixture(autouse=True)
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `upgrade run` looks for half a second whether anybody searches: not so long here."""
    monkeypatch.setattr(upgrade_sources, "LOOK", 0.05)


Result = tuple[int, str, str]  # exit code, stdout, stderr
Command = Callable[..., Result]


@pytest.fixture
def midspan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`midspan("gate", "--before", …)` as the shell would run it, in this process."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["midspan", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call
