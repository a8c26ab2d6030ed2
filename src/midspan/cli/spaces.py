"""`--space`: the space of files of vectors that do not hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from midspan.cli.verbs import OLD_NAMES
from midspan.errors import ConfigError, SpaceMismatch, SpaceMissing

if TYPE_CHECKING:
    from midspan.spaces import Embeddings

SPACE = typer.Option(
    "--space",
    metavar="[OPTION=]NAME",
    help="Space of a file of vectors that does not hold it: one name for all files of one encoder. "
    "With several files, may be repeated for each: --space OPTION=NAME.",
)


@dataclass(frozen=True, slots=True)
class SpaceNames:
    """What --space said: one name for every file, or names for the files of single options."""

    options: tuple[str, ...]
    every: str | None
    single: Mapping[str, str]

    @classmethod
    def of(cls, given: Sequence[str] | None, *options: str) -> SpaceNames:
        """`options`: those of this command that name a file of vectors, without the dashes."""
        every: str | None = None
        single: dict[str, str] = {}
        for text in given or ():
            option, separator, name = text.rpartition("=")
            if option not in options:  # the option's name in earlier versions
                option = OLD_NAMES.get(f"--{option}", option).removeprefix("--")
            if separator and option not in options:
                known = " or ".join(f"{one}=NAME" for one in options)
                raise ConfigError(f"--space {text}: expected NAME or {known}, got {option!r}")
            if not name or (every is not None and not separator) or option in single:
                raise ConfigError(f"--space {text}: expected one name for each file, got another")
            if separator:
                single[option] = name
            else:
                every = name
        return cls(options, every, single)

    def load(self, path: Path, option: str) -> Embeddings:
        from midspan.spaces import Embeddings

        try:
            return Embeddings.load(path, space=self.single.get(option, self.every))
        except SpaceMissing as error:
            flag = "--space NAME" if len(self.options) == 1 else f"--space {option}=NAME"
            raise SpaceMissing(f"{error} (here: {flag})") from error
        except SpaceMismatch as error:
            hint = f"--space {option}=NAME is for single files" if self.every else "leave it out"
            raise SpaceMismatch(f"{error} (here: --space; {hint})") from error
