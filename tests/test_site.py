"""The docs site is whole: its made pages hold everything, and its links lead to files.

`make docs` builds it, strictly; here is what mkdocs does not look at.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from midspan.service.routes import TABLE

ROOT = Path(__file__).parent.parent
HOOK = ROOT / "docs" / "site_hook.py"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hook", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_http_page_has_every_route_with_its_role_and_body(hook: ModuleType) -> None:
    page = hook.http_page()
    for route in TABLE:
        path = route.path.replace(":path}", "}")
        start = page.index(f"### {route.method} {path}\n")
        section = page[start : page.find("\n### ", start + 1)]
        assert f"*{route.role}*" in section
        assert "Answers 200" in section
        if route.takes is not None:
            assert f"[{route.takes.__name__}](#{route.takes.__name__.lower()})" in section
    for name in re.findall(r"\]\(#(\w+)\)", page):
        assert re.search(rf"^### {name}$", page, flags=re.MULTILINE | re.IGNORECASE), name


def test_http_page_fails_when_the_document_is_not_there(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = {"info": {"description": ""}, "tags": [], "paths": {}, "components": {"schemas": {}}}
    monkeypatch.setattr("midspan.service.openapi.plain_document", lambda: empty)
    with pytest.raises(ValueError, match="not whole"):
        hook.http_page()


def test_module_pages_show_every_exported_name(hook: ModuleType) -> None:
    for name in hook.MODULES:
        page = hook.module_page(name)
        for word in importlib.import_module(f"midspan.{name}").__all__:
            assert re.search(rf"heading: {word}\n|^## {word}$|`{word}`", page + "\n", re.M), word
    assert "members: false" not in page


def test_api_page_shows_what_the_public_functions_give() -> None:
    page = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    for name in ("Encoder", "Comparison", "GateResult", "Status", "Plan", "Hit", "Report"):
        assert f"heading: {name}\n" in page


def test_command_page_escapes_markup(hook: ModuleType) -> None:
    assert hook.cell("a|b *c* [d] <e>") == r"a\|b \*c\* \[d\] &lt;e&gt;"
    assert "## midspan gallery create" in hook.cli_page()


def test_links_out_of_docs_lead_to_copies_of_the_files(hook: ModuleType) -> None:
    found = dict(hook.outside_links("upgrade.md", "[x](../benchmarks/results/gate_rates.csv)"))
    assert found == {"../benchmarks/results/gate_rates.csv": "benchmarks/results/gate_rates.csv"}
    with pytest.raises(FileNotFoundError, match=r"docs/upgrade\.md links to .*nothing\.csv"):
        list(hook.outside_links("upgrade.md", "[x](../benchmarks/results/nothing.csv)"))


def test_site_is_built_by_check_and_by_ci() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    check = makefile[makefile.index("\ncheck:") :]
    assert "mkdocs build --strict" in check[: check.index("\n\n")]
    assert "make docs" in (ROOT / ".ci/run").read_text(encoding="utf-8")
