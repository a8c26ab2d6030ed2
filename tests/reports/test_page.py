from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from midspan.reports.page import render, write_text


def test_render_missing_value_raises() -> None:
    with pytest.raises(UndefinedError, match="caption"):
        render("table.html.j2", {"columns": [], "rows": [], "footer": []})


def test_write_text_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_text("first, longer", path)
    write_text("sécond", path)
    assert path.read_text(encoding="utf-8") == "sécond"
    assert list(path.parent.iterdir()) == [path]
