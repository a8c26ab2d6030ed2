"""The page's files, without a browser: what the strict content policy and our own rules forbid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import midspan

PAGE = Path(midspan.__file__).parent / "service" / "page"
FILES = sorted(path for path in PAGE.iterdir() if path.is_file())
MODULES = [path for path in FILES if path.suffix == ".js"]
SVG_NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_page_files_load_nothing_from_other_hosts(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace(SVG_NAMESPACE, "")
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text) == []
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_text_never_becomes_markup(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser"
    )
    assert re.findall(forbidden, text) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_is_read_at_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 250


def test_the_markup_has_no_inline_script_and_no_inline_style() -> None:
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"\sstyle=|<style|\son[a-z]+=", html) == []
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", html, flags=re.S)
    assert scripts
    assert all("src=" in attributes and body == "" for attributes, body in scripts)


def test_every_file_that_is_named_is_there_and_every_file_is_named() -> None:
    named = {"index.html", "docs.html"}
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r'"/page/([^"]+)"', text)) | set(
            re.findall(r'from "\./([^"]+)"', text)
        )
    assert named == {path.name for path in FILES}


def test_every_imported_name_is_exported() -> None:
    for path in MODULES:
        for names, source in re.findall(
            r'import \{([^}]+)\} from "\./([^"]+)"', path.read_text(encoding="utf-8")
        ):
            text = (PAGE / source).read_text(encoding="utf-8")
            exported = set(re.findall(r"export (?:async )?(?:function|const|class) ([\w$]+)", text))
            imported = {name.strip().split(" as ")[0] for name in names.split(",") if name.strip()}
            assert imported <= exported, (path.name, source)


def test_every_id_that_a_module_asks_for_is_in_the_markup() -> None:
    html = {name: (PAGE / name).read_text(encoding="utf-8") for name in ("index.html", "docs.html")}
    ids = {name: set(re.findall(r'\sid="([^"]+)"', text)) for name, text in html.items()}
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        asked = set(re.findall(r'\$\("([^"]+)"\)', text))
        where = "docs.html" if path.name == "docs.js" else "index.html"
        assert asked <= ids[where], path.name
