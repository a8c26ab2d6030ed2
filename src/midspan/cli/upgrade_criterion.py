"""Before a start in mode direct: what the test of the encoder's training said."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from midspan.cli import exits

if TYPE_CHECKING:
    from midspan.gallery import Gallery
    from midspan.spaces import Embeddings, Space


def reason_to_start(gallery: Gallery, to: Space | Embeddings, override: str | None) -> str | None:
    """The override of the start: as given, or asked for where the test failed."""
    from midspan.upgrade.start import compatibility, space_of

    new, old = space_of(to), gallery.space
    if not new.comparable_with(old) or new.same_as(old):
        return override  # refused by the start itself, with its own words
    evidence = compatibility(old, new)
    if evidence.verdict == "INCONCLUSIVE":
        typer.echo(f"compatibility is not shown: {evidence}", err=True)
    if evidence.verdict != "FAIL" or override is not None:
        return override
    typer.echo(f"the test of the new encoder's training: {evidence}", err=True)
    reason = ""
    if sys.stdin.isatty():
        typer.echo("Its queries search the old gallery worse.", err=True)
        reason = typer.prompt("Reason to start nevertheless (empty: stop)", default="", err=True)
    if not reason.strip():
        typer.echo('nothing was started; to start nevertheless, add --override "reason"', err=True)
        raise typer.Exit(exits.INCOMPLETE)
    return str(reason)
