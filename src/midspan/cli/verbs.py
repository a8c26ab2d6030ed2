"""Options have the same name on every verb; names of earlier versions keep working, hidden.

So do verbs that were renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperGroup

# as it was → as it is, on every verb that has the second and not the first
OLD_NAMES = {
    "--embeddings": "--vectors",
    "--input": "--vectors",
    "--exclude": "--exclude-column",
    "--metrics": "--metric",
    "--batch": "--batch-size",
}
# names that mean something else on other verbs, where they are shown
MOVED = {"--metric": "--distance"}
# verbs, as they were → as they are
OLD_VERBS = {"trail": "audit"}


class Verbs(TyperGroup):
    """A group of commands that also takes the names of earlier versions."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in OLD_VERBS:
            return super().get_command(ctx, OLD_VERBS[cmd_name])
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_new_names(self, args))


def with_new_names(group: Any, words: Sequence[str]) -> list[str]:
    """The words of a command line with the names that its verb knows."""
    command = group
    for word in words:
        inner = getattr(command, "commands", {})
        if word not in inner:
            break
        command = inner[word]
    known = {flag for parameter in command.params for flag in parameter.opts}
    renamed = {
        old: new for old, new in (OLD_NAMES | MOVED).items() if new in known and old not in known
    }
    return [_renamed(word, renamed) for word in words]


def _renamed(word: str, renamed: dict[str, str]) -> str:
    flag, equals, value = word.partition("=")
    return f"{renamed[flag]}{equals}{value}" if flag in renamed else word
