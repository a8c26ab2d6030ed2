"""Files that only GitHub and its tools read: they parse, and what they name exists."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import midspan as ms

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.y*ml"))
FIELDS = {"checkboxes", "dropdown", "input", "markdown", "textarea", "upload"}


def read(path: Path) -> dict[Any, Any]:
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(loaded, dict), path.name
    return loaded


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", text, flags=re.MULTILINE))


def missing(command: str) -> Iterator[str]:
    """What a shell line of a workflow names and the repository does not have."""
    words = shlex.split(command, comments=True)
    if words[:1] == ["make"]:
        yield from (f"make {word}" for word in words[1:] if word not in make_targets())
        return
    for script in words[:2]:  # a script, or an interpreter and its script
        if "/" in script and "$" not in script and not (ROOT / script).is_file():
            yield script


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_names_targets_scripts_and_jobs_that_exist(path: Path) -> None:
    workflow = read(path)
    assert True in workflow, "no `on:`"  # YAML 1.1 reads the key as a boolean
    jobs = workflow["jobs"]
    for name, job in jobs.items():
        needs = job.get("needs", [])
        assert {needs} <= set(jobs) if isinstance(needs, str) else set(needs) <= set(jobs), name
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), (name, step)
            if "uses" in step:
                assert re.fullmatch(r"[\w.-]+/[\w./-]+@[\w./-]+", step["uses"]), step["uses"]
            lines = step.get("run", "").splitlines()
            assert [found for line in lines for found in missing(line)] == [], name


def test_release_is_made_by_a_tag_after_tests_and_the_wheel() -> None:
    workflow = read(ROOT / ".github" / "workflows" / "release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    build = workflow["jobs"]["build"]
    commands = [step["run"] for step in build["steps"] if "run" in step]
    assert {"make test", "make wheel"} <= set(commands)
    assert workflow["jobs"]["publish"]["needs"] == "build"
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    python = next(step["with"] for step in build["steps"] if "setup-python" in step.get("uses", ""))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={python['python-version']}"


def test_citation_has_the_version_and_the_licence_of_the_package() -> None:
    citation = read(ROOT / "CITATION.cff")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert citation["version"] == ms.__version__
    assert citation["license"] == project["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_issue_template_has_the_fields_that_github_requires(path: Path) -> None:
    template = read(path)
    assert template["name"]
    assert template["description"]
    asked = [field for field in template["body"] if field["type"] != "markdown"]
    assert asked
    for field in template["body"]:
        assert field["type"] in FIELDS
        assert "label" in field["attributes"] or field["type"] == "markdown"


@pytest.mark.parametrize(
    "line", ["make tests", "bash tests/first_hour/walk.sh", "make test wheels", "scripts/check"]
)
def test_line_of_a_workflow_that_names_nothing_is_found(line: str) -> None:
    assert list(missing(line)) != []
