"""`midspan gallery backup | restore`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from midspan.cli.output import JSON_OPTION, print_json


def backup(
    location: Annotated[str, typer.Argument(help="A gallery file; it may be in use.")],
    path: Annotated[Path, typer.Argument(help="The file to write; must not exist yet.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Copy a gallery file consistently, also while it is served and written."""
    from midspan.gallery.copy import backup as make

    made = make(location, path)
    print_json(asdict(made)) if as_json else print(f"{made.path}: {made.items:,} items")


def restore(
    path: Annotated[Path, typer.Argument(help="A file that `backup` wrote.")],
    location: Annotated[str, typer.Argument(help="Location of the new gallery.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Check a backup and make a gallery of it; indexes are built again when they are needed."""
    from midspan.gallery.copy import restore as make

    made = make(path, location)
    print_json(asdict(made)) if as_json else print(f"{made.path}: {made.items:,} items")
