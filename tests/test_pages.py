"""The README and the tutorials are true: each block runs, on what the blocks before it made."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from midspan.cli import app

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(f"docs/tutorials/{name}.md" for name in ("bridge", "train", "serve"))]
BLOCK = re.compile(r"```(python|console|text)\n(.*?)```", flags=re.DOTALL)


NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_in_a_kernel(notebook: Path, tmp_path: Path) -> None:
    """From the first cell to the last, in a kernel of its own; results must show something."""
    nbclient: Any = pytest.importorskip("nbclient")
    nbformat: Any = pytest.importorskip("nbformat")
    assert len(NOTEBOOKS) == 4
    document = nbformat.read(notebook, as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of jupyter's own libraries
        client = nbclient.NotebookClient(
            document, timeout=250, resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
    cells = [one for one in document.cells if one.cell_type == "code"]
    assert len(cells) >= 3
    assert any(one.outputs for one in cells)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_a_page_run_one_after_another(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    names: dict[str, object] = {}
    ran, printed = 0, ""
    for language, block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(block, page, "exec"), names)
            printed, ran = capsys.readouterr().out, ran + 1
        elif language == "console":
            for line in re.findall(r"^\$ midspan (.*)$", block, flags=re.MULTILINE):
                result = CliRunner().invoke(app, line.split())
                # a gate's answer (0, 1 or 3) is an answer; 2 and exceptions are errors
                assert result.exit_code in (0, 1, 3), (line, result.output)
                assert result.exception is None or isinstance(result.exception, SystemExit), line
                ran += 1
        else:  # what the block before printed
            assert block.split() == printed.split()
    assert ran >= 3
