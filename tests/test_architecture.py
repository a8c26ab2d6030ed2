"""Imports point one way, and `import midspan` stays light."""

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
    "atomic_write",
    "image_size",
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
    "average_precision",
}
# package → packages that it may import, besides the base and itself
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
ANYTHING = {"service", "cli", "__main__"}  # may import every package; none imports them
INSIDE_BASE = {
    "atomic_write": set[str](),
    "image_size": {"errors"},
    "errors": set[str](),
    "deprecation": set[str](),
    "progress": set[str](),
    "wire": {"wire"},
    "html_table": set[str](),
    "average_precision": {"spaces"},
    "config": {"deprecation", "errors"},
    "evidence": {"errors"},
    "labels": {"errors"},
    "spaces": {"errors", "evidence", "labels", "embedding_files"},
    "embedding_files": {"atomic_write", "errors", "spaces"},
}


def imported_packages(file: Path) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            parts = node.module.split(".")
            if parts == ["midspan"]:
                packages |= {alias.name for alias in node.names}
            elif parts[0] == "midspan":
                packages.add(parts[1])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "midspan":
                    packages.add(parts[1] if len(parts) > 1 else "midspan")
    return packages


def package_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("package", sorted({package_of(file) for file in FILES}))
def test_package_imports_only_what_the_map_allows(package: str) -> None:
    if package in ANYTHING or package == "__init__":
        return
    if package in BASE:
        allowed = INSIDE_BASE[package]
    else:
        assert package in MAP, (
            f"{package} is not on the map: add it to docs/architecture.md and here"
        )
        allowed = MAP[package] | BASE | {package}
    imported = {
        file: imported_packages(file) - WHEN_CALLED.get(file.relative_to(SOURCE).as_posix(), set())
        for file in FILES
        if package_of(file) == package
    }
    extra = {
        str(file.relative_to(SOURCE)): sorted(packages - allowed - {"__version__"})
        for file, packages in imported.items()
        if packages - allowed - {"__version__"}
    }
    assert not extra, f"these may not import that: {extra}"


@pytest.mark.parametrize(
    "package", ["gallery", "upgrade", "evaluation", "bridges", "data", "client"]
)
def test_import_of_a_light_package_does_not_load_torch(package: str) -> None:
    if not (SOURCE / package).is_dir():
        pytest.skip(f"{package} is not built yet")
    code = f"import sys, midspan.{package}; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_import_midspan_is_quick_and_loads_no_heavy_library() -> None:
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
