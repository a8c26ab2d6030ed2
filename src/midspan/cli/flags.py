"""Library messages name library arguments in backticks; here they become the flags of the verb."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

# arguments that have another name on the command line
RENAMED = {
    "gpus": "gpus_per_worker",
    "group_column": "group",
    "pack": "ship_images",
    "sample_size": "sample",
}
_ARGUMENT = re.compile(r"`([a-z][a-z_]*)`")
_COMMAND = re.compile(r"midspan ((?:[a-z][a-z-]* )+)`([a-z][a-z_]*)`")  # of the verb it names


def with_flags(message: str, words: Sequence[str]) -> str:
    """`restart` → --restart where the verb (the first of `words`) has it; else it is for Python.

    After the name of a command (midspan upgrade failures `delete`) it is a flag of that one.
    """
    from midspan.cli import app

    def of_command(match: re.Match[str]) -> str:
        flag = flags_of(app, tuple(match[1].split())).get(match[2])
        return match[0] if flag is None else f"midspan {match[1]}{flag}"

    message = _COMMAND.sub(of_command, message)
    flags = flags_of(app, tuple(words))

    def shown(match: re.Match[str]) -> str:
        flag = flags.get(match[1]) or flags.get(RENAMED.get(match[1], ""))
        return flag or f"{match[0]} (in Python)"

    return _ARGUMENT.sub(shown, message)


@cache
def flags_of(app: Any, words: tuple[str, ...]) -> dict[str, str]:
    """Argument → flag, of the verb that these words of a command line begin with."""
    import typer

    command: Any = typer.main.get_command(app)
    for word in words:
        inner = getattr(command, "commands", {})
        if word not in inner:
            break
        command = inner[word]
    return {
        parameter.name: next(flag for flag in parameter.opts if flag.startswith("-"))
        for parameter in command.params
        if parameter.param_type_name == "option"
    }
