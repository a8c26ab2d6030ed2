"""The page "Your first upgrade" is true: its commands are run, its lines of output compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from midspan.cli import app
from midspan.cli.flags import with_flags
from midspan.errors import MidspanError

PAGE = Path(__file__).parent.parent / "docs" / "first_upgrade.md"
TIMES = re.compile(r"in [\d.,]+ s \([\d,]+ items/s\)")


def plain(line: str) -> str:
    return TIMES.sub("in T", " ".join(line.split()))


def output_of(command: str) -> list[str]:
    result = CliRunner().invoke(app, command.split()[1:])
    if isinstance(result.exception, MidspanError):  # which `midspan` itself prints
        words = with_flags(str(result.exception), command.split()[1:])
        return [plain(f"error: {words}")]
    return [plain(line) for line in result.output.splitlines()]


@pytest.mark.slow
def test_first_upgrade_page_equals_the_output_of_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    blocks = re.findall(
        r"```(python|console)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    commands = 0
    for language, block in blocks:
        if language == "python":
            exec(compile(block, PAGE.name, "exec"), {})
            continue
        printed: list[str] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                commands, printed = commands + 1, output_of(line[2:])
            else:  # an excerpt: each line that is shown is there, in this order
                assert plain(line) in printed, (line, printed)
                printed = printed[printed.index(plain(line)) + 1 :]
    assert commands >= 15
