"""Messages, docstrings, comments and docs are in plain English: the worst repeaters stay away.

Packages in PENDING still have some; take one off the list when it is clean.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import midspan

SOURCE = Path(midspan.__file__).parent
ROOT = Path(__file__).parent.parent

# word → what to write instead
WORDS = {
    r"wants?": "requires, needs, expected … got",
    r"wanted": "expected … got",
    r"hopeless": "permanent failure",
    r"given up|gave up|gives? up": "failed",
    r"anew": "again",
    r"in this moment": "concurrently, at this point",
    r"streets?": "data flow",
    r"front doors?": "public API",
    r"rooms?": "package (or space, capacity)",
    r"goes on|go on|going on|went on": "continues",
    r"stands? twice": "is duplicated",
    r"vouch(es)?": "checks, guarantees",
    r"beside": "next to, besides, during",
    r"tells|told": "reports, names, distinguishes",
    r"whoever": "the process (writer, role, caller) that",
    r"strangers?": "another space, an untrusted source",
}
PATTERN = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
DIFF = re.compile(r"```diff.*?```", re.DOTALL)  # shows the words before they were replaced
PENDING = {  # edited elsewhere at the moment
    "client",
    "evaluation/templates.py",  # the old name of an argument
    "evaluation/threads.py",
    "gallery/engines/pgvector_index.py",
    "gallery/maintenance.py",
    "gallery/records.py",
    "gallery/routing.py",
    "gallery/search.py",
    "service",
    "upgrade/own_queries.py",
    "upgrade/verdicts.py",
    "wire",
}
TEXT = {
    tokenize.STRING,
    tokenize.COMMENT,
    getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),  # from Python 3.12 on
}


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every string and comment."""
    with tokenize.open(file) as opened:
        for token in tokenize.generate_tokens(opened.readline):
            if token.type in TEXT:
                yield token.start[0], token.string


def is_pending(file: Path) -> bool:
    name = file.relative_to(SOURCE).as_posix()
    return any(name == entry or name.startswith(f"{entry}/") for entry in PENDING)


FILES = [file for file in sorted(SOURCE.rglob("*.py")) if not is_pending(file)]


def test_source_uses_plain_words() -> None:
    findings = [
        f"{file.relative_to(SOURCE)}:{line}: {match[0]!r}"
        for file in FILES
        for line, text in prose(file)
        for match in PATTERN.finditer(text)
    ]
    assert findings == [], f"write instead: {WORDS}"


def test_source_has_no_variable_named_found_or_wanted() -> None:
    findings = []
    for file in FILES:
        with tokenize.open(file) as opened:
            findings += [
                f"{file.relative_to(SOURCE)}:{token.start[0]}"
                for token in tokenize.generate_tokens(opened.readline)
                if token.type == tokenize.NAME and token.string in {"found", "wanted"}
            ]
    assert findings == [], "name the content: matches, rows, expected"


def test_docs_use_plain_words() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    findings = [
        f"{page.relative_to(ROOT)}: {match[0]!r}"
        for page in pages
        for match in PATTERN.finditer(DIFF.sub("", page.read_text(encoding="utf-8")))
    ]
    assert findings == [], f"write instead: {WORDS}"
