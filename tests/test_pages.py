"""The README and the tutorials are true: each block runs, on what the blocks before it made."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import midspan as ms
from midspan.cli import app

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(f"docs/tutorials/{name}.md" for name in ("bridge", "train", "serve"))]
BLOCK = re.compile(r"```(python|console|sh|text)\n(.*?)```", flags=re.DOTALL)


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


@contextlib.contextmanager
def serving(command: str) -> Iterator[str]:
    """`midspan serve …` of a page, on a free port; its address when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, "-m", "midspan", *command.split()[1:], "--port", port]
    with subprocess.Popen(words) as server:
        try:
            with ms.Client(f"http://127.0.0.1:{port}") as client:
                until = time.monotonic() + 120
                while not client.ready():
                    assert server.poll() is None, "the service has ended"
                    assert time.monotonic() < until, "the service does not answer"
                    time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.mark.slow
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
    ran, printed, address = 0, "", "127.0.0.1:8080"
    with contextlib.ExitStack() as servers:
        for language, block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
            if language == "python":
                exec(compile(block.replace("127.0.0.1:8080", address), page, "exec"), names)
                printed, ran = capsys.readouterr().out, ran + 1
            elif language == "console":
                for line in re.findall(r"^\$ midspan (.*)$", block, flags=re.MULTILINE):
                    result = CliRunner().invoke(app, line.split())
                    # a gate's answer (0, 1 or 3) is an answer; 2 and exceptions are errors
                    assert result.exit_code in (0, 1, 3), (line, result.output)
                    assert result.exception is None or isinstance(result.exception, SystemExit)
                    ran += 1
            elif language == "sh":  # others are for tests/test_doc_commands.py
                if block.startswith("midspan serve "):
                    address = servers.enter_context(serving(block.strip()))
            else:  # what the block before printed
                assert block.split() == printed.split()
    assert ran >= 3
