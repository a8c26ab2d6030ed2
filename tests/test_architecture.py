"""Imports point one way, and the front door stays light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import midspan

SOURCE = Path(midspan.__file__).parent
BASE = {
    "spaces",
    "labels",
    "embedding_files",
    "errors",
    "deprecation",
    "evidence",
    "config",
    "progress",
    "html_table",
    "wire",
}
# room → rooms it may import, beside the base and itself
MAP: dict[str, set[str]] = {
    "data": set(),
    "losses": set(),
    "bridges": set(),
    "evaluation": set(),
    "encoders": {"data"},
    "methods": {"losses"},
    "training": {"data", "encoders", "losses", "methods", "bridges", "evaluation"},
    "reports": {"evaluation"},
    "gallery": {"bridges", "evaluation"},
    "upgrade": {"gallery", "bridges", "evaluation", "data"},
    "client": set(),
}
# `Comparison.to_html` writes a page, and imports what makes it when it is called
WHEN_CALLED = {"evaluation/compare.py": {"reports"}}
ANYTHING = {"service", "cli", "__main__"}  # may import every room; nobody imports them
INSIDE_BASE = {
    "errors": set[str](),
    "deprecation": set[str](),
    "progress": set[str](),
    "wire": {"wire"},
    "html_table": set[str](),
    "config": {"errors"},
    "evidence": {"errors"},
    "labels": {"errors"},
    "spaces": {"errors", "evidence", "labels", "embedding_files"},
    "embedding_files": {"errors", "spaces"},
}


def imported_rooms(file: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            parts = node.module.split(".")
            if parts == ["midspan"]:
                rooms |= {alias.name for alias in node.names}
            elif parts[0] == "midspan":
                rooms.add(parts[1])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "midspan":
                    rooms.add(parts[1] if len(parts) > 1 else "midspan")
    return rooms


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("room", sorted({room_of(file) for file in FILES}))
def test_imports_follow_the_map(room: str) -> None:
    if room in ANYTHING or room == "__init__":
        return
    if room in BASE:
        allowed = INSIDE_BASE[room]
    else:
        assert room in MAP, f"{room} is not on the map: add it to docs/architecture.md and here"
        allowed = MAP[room] | BASE | {room}
    found = {
        file: imported_rooms(file) - WHEN_CALLED.get(file.relative_to(SOURCE).as_posix(), set())
        for file in FILES
        if room_of(file) == room
    }
    extra = {
        str(file.relative_to(SOURCE)): sorted(rooms - allowed - {"__version__"})
        for file, rooms in found.items()
        if rooms - allowed - {"__version__"}
    }
    assert not extra, f"these may not import that: {extra}"


@pytest.mark.parametrize("room", ["gallery", "upgrade", "evaluation", "bridges", "data", "client"])
def test_light_rooms_do_not_load_torch(room: str) -> None:
    if not (SOURCE / room).is_dir():
        pytest.skip(f"{room} is not built yet")
    code = f"import sys, midspan.{room}; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_front_door_is_light_and_quick() -> None:
    code = (
        "import json, sys, time; start = time.process_time(); import midspan; "
        "seconds = time.process_time() - start; "
        "heavy = ['torch', 'faiss', 'pyarrow', 'matplotlib', 'scipy', 'pandas', "
        "'sqlite3', 'sqlalchemy']; "
        "print(json.dumps([seconds, [n for n in heavy if n in sys.modules]]))"
    )
    runs = []
    for _ in range(8):  # the machine may be busy: the best of a few is the import's own time
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        seconds, heavy = json.loads(result.stdout)
        assert heavy == []
        runs.append(seconds)
        if seconds < 0.3:
            break
    assert min(runs) < 0.6, "0.1 s on a quiet machine"
