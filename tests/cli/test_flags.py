"""The library names its arguments; the command line names flags that the verb has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import midspan as package
from midspan import Embeddings
from midspan.cli import app
from midspan.cli.flags import with_flags
from midspan.cli.verbs import OLD_NAMES
from tests.cli.conftest import Command
from tests.cli.test_gallery import OLD, OTHER, vectors

SOURCE = Path(package.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
FOREIGN = {  # options of other programs, with the words that they are named with
    "--no-deps": "pip install",
    "--sort": "tar",
    "--nproc-per-node": "torchrun",
    "--head": "ray start",
}
STYLES = SOURCE / "reports" / "svg.py"  # CSS variables look like flags


def texts(file: Path) -> Iterator[str]:
    """All string constants of a file but its docstrings; pieces of an f-string are joined."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(piece.value) if isinstance(piece, ast.Constant) else "…"
                for piece in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        ):
            yield node.value


def library_files() -> list[Path]:
    files = [file for file in SOURCE.rglob("*.py") if "cli" not in file.relative_to(SOURCE).parts]
    return [file for file in files if file != STYLES]


def all_flags() -> set[str]:
    flags, groups = set[str](), [typer.main.get_command(app)]
    while groups:
        command = groups.pop()
        groups += getattr(command, "commands", {}).values()
        for parameter in command.params:
            flags |= {*parameter.opts, *parameter.secondary_opts}
    return flags | {"--help"}


def test_library_messages_contain_no_flags() -> None:
    wrong = [
        f"{file.relative_to(SOURCE)}: {text}"
        for file in library_files()
        for text in texts(file)
        for flag in FLAG.findall(text)
        if FOREIGN.get(flag, "\0") not in text
    ]
    assert wrong == []


def test_cli_messages_name_existing_flags_only() -> None:
    known = all_flags()
    named = {
        (file.name, flag)
        for file in (SOURCE / "cli").glob("*.py")
        for text in texts(file)
        for flag in FLAG.findall(text)
    }
    assert len(named) > 50
    assert {
        (file, flag) for file, flag in named if flag not in known | {*FOREIGN, *OLD_NAMES}
    } == set()


@pytest.mark.parametrize(
    ("words", "message", "shown"),
    [
        (
            ["train", "run.toml"],
            "choose another `out`, or `restart`",
            "another --out, or --restart",
        ),
        (["upgrade", "start", "x"], "give `to`", "give --to"),
        (["gallery", "search", "x"], "with `direct`", "with `direct` (in Python)"),
        (["embed"], "ask for less (`gpus`)", "ask for less (--gpus-per-worker)"),
        (["serve"], "start it with `new_encoder`", "start it with --new-encoder"),
        (["gate"], "see `ray status`", "see `ray status`"),
        ([], "nothing `out`", "nothing `out` (in Python)"),
    ],
)
def test_error_argument_names_become_flags_of_the_verb(
    words: list[str], message: str, shown: str
) -> None:
    assert shown in with_flags(message, words)


def test_gallery_search_vectors_of_another_space_names_no_flag(
    midspan: Command, tmp_path: Path
) -> None:
    place = tmp_path / "shop.midspan"
    midspan("gallery", "create", place, "--embeddings", vectors(tmp_path / "a.npz", OLD, range(30)))
    other = vectors(tmp_path / "o.npz", OTHER, range(30, 50))
    code, _, err = midspan("gallery", "search", place, "--vectors", other)
    assert code == 2
    assert FLAG.findall(err) == []
    code, _, err = midspan("eval", "--query", other, "--gallery", tmp_path / "a.npz")
    assert code == 2
    assert err.rstrip().endswith("or compare them as they are with --direct")
    assert len(Embeddings.load(other)) == 20


def test_error_argument_after_a_command_becomes_its_flag() -> None:
    message = "delete them with midspan upgrade failures `delete`, or finish with `override`"
    shown = with_flags(message, ["upgrade", "finish", "shop.midspan"])
    assert shown == "delete them with midspan upgrade failures --delete, or finish with --override"
