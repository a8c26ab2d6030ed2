"""The commands and links of the README exist; its blocks run in test_pages.py."""

from __future__ import annotations

import re
from pathlib import Path

from midspan.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_commands_in_the_readme_exist() -> None:
    verbs = {command.name for command in app.registered_commands}
    verbs |= {group.name for group in app.registered_groups}
    used = set(re.findall(r"`midspan ([a-z-]+)", README))
    assert used
    assert used <= verbs


def test_make_targets_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make (\w+) ", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE) or target in ("and", "it")


def test_links_of_readme_and_docs_have_targets() -> None:
    """On GitHub; `make docs` looks at those of the site, and at the pages that are made there."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if page.parent.name == "reference":
            continue
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
