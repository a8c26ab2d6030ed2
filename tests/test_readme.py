"""The README's Python runs as it stands, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from midspan import Embeddings, Space
from midspan.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_python_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 12
    for name, noise in (("old", 1.0), ("new", 0.5)):
        Embeddings(
            ids=np.array([f"photo-{n}" for n in range(60)]),
            vectors=(np.eye(12)[labels] + noise * rng.normal(size=(60, 12))).astype(np.float32),
            space=Space(name, 12),
            columns={"labels": labels},
        ).save(tmp_path / f"{name}.npz")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    found = blocks("python")
    assert len(found) >= 2
    for block in found:
        exec(compile(block, "README.md", "exec"), names)
    out = capsys.readouterr().out
    assert "may search the old gallery" in out
    assert "no compatibility" in out


def test_commands_in_the_readme_exist() -> None:
    verbs = {command.name for command in app.registered_commands}
    verbs |= {group.name for group in app.registered_groups}
    used = {
        line.split()[1]
        for block in blocks("sh")
        for line in block.splitlines()
        if line.startswith("midspan ")
    }
    assert used
    assert used <= verbs


def test_make_targets_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make (\w+) ", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE) or target in ("and", "it")


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
