"""`make test` gives Ray and Milvus a process each, which collect only the paths they are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def paths(kind: str) -> list[Path]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    told = re.search(rf"^{kind.upper()}_TESTS := (.+)$", makefile, flags=re.MULTILINE)
    assert told is not None
    return [ROOT / path for path in told[1].split()]


@pytest.mark.parametrize("kind", ["ray", "milvus"])
def test_marked_tests_are_under_the_paths_of_the_makefile(kind: str) -> None:
    homes = paths(kind)
    marked = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(rf"mark\.{kind}\b", path.read_text(encoding="utf-8"))
        and path != Path(__file__)
    ]
    assert all(home.exists() for home in homes)
    assert marked
    for path in marked:
        assert any(path == home or home in path.parents for home in homes), path
