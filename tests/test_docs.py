"""What exists is documented: every name of every table, every verb of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from midspan.bridges import BRIDGES
from midspan.cli import app
from midspan.data import ALLOCATIONS, DATASETS
from midspan.encoders import BACKBONES
from midspan.evaluation import METRICS
from midspan.evaluation.protocols import PROTOCOLS
from midspan.losses import LOSSES
from midspan.methods import METHODS
from midspan.training.augment import AUGMENTATIONS
from midspan.upgrade import MODES, ORDERS

SAMPLERS = ("shuffled", "balanced")  # the choices of [train] sampler
ROOT = Path(__file__).parent.parent
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")}

TABLES: dict[str, list[Iterable[str]]] = {
    "training.md": [
        *(ALLOCATIONS, AUGMENTATIONS, BACKBONES, DATASETS, LOSSES, METHODS, SAMPLERS),
    ],
    "evaluation.md": [METRICS, PROTOCOLS],
    "bridges.md": [BRIDGES],
    "upgrade.md": [MODES, ORDERS],
}


@pytest.mark.parametrize("page", TABLES)
def test_every_name_of_the_tables_is_on_its_page(page: str) -> None:
    missing = [name for table in TABLES[page] for name in table if name not in PAGES[page]]
    assert missing == []


def test_every_verb_is_in_the_docs() -> None:
    everything = "\n".join([*PAGES.values(), (ROOT / "README.md").read_text(encoding="utf-8")])
    verbs = [command.name for command in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        inner = group.typer_instance.registered_commands
        verbs += [f"{group.name} {command.name}" for command in inner]
    assert verbs
    missing = [verb for verb in verbs if f"midspan {verb}" not in everything and verb != "demo"]
    assert missing == []


def test_files_of_the_architecture_page_exist() -> None:
    """Every path of its diagrams, such as training/loop.py; `x.py` after one is in its folder."""
    source, missing = ROOT / "src" / "midspan", []
    diagrams = PAGES["architecture.md"].split("## Four paths")[1].split("\n## ")[0]
    found = re.findall(r"([\w/]+)/(\w+\.py)((?:, \w+\.py)*)", diagrams)
    assert len(found) > 30
    for folder, first, others in found:
        names = [first, *others.split(", ")[1:]]
        missing += [f"{folder}/{name}" for name in names if not (source / folder / name).is_file()]
    assert missing == []
