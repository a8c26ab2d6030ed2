"""`midspan gate`: PASS, FAIL or INCONCLUSIVE, with exit code 0, 1 or 3."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from midspan.cli.evaluate import EXCLUDE
from midspan.cli.exits import exit_with
from midspan.cli.output import JSON_OPTION, print_gate, print_json
from midspan.cli.outputs import FORCE, PAGE, check_file
from midspan.cli.spaces import SPACE, SpaceNames
from midspan.cli.upgrade_options import MAX_FLIPS


def gate(
    before: Annotated[Path, typer.Option(help="Embeddings that serve today.")],
    after: Annotated[Path, typer.Option(help="Embeddings of the gallery that would serve.")],
    query: Annotated[
        Path | None, typer.Option(help="The new encoder's queries on it; default: itself.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="True new embeddings, if --after is mapped or mixed.")
    ] = None,
    max_negative_flips: Annotated[float | None, MAX_FLIPS] = None,
    min_retention: Annotated[
        float, typer.Option(help="Share of the reference's quality that must be left.")
    ] = 0.98,
    metric: Annotated[str, typer.Option(help="map, recall@1, map@r …; needs labels.")] = "map",
    exclude_column: Annotated[str | None, EXCLUDE] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Column (labels, shop …): no group may be significantly worse."),
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with the evidence here.")] = None,
    space: Annotated[list[str] | None, SPACE] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Decide whether to switch: exit code 0 for PASS, 1 for FAIL, 3 for INCONCLUSIVE.

    The interval decides, not the value: INCONCLUSIVE says how many more queries would. Labels are
    taken from --before; without labels, what both encoders agree on must still be found. The
    reference is --truth if given, else what serves today.
    """
    from midspan.upgrade import gate as decide

    check_file(page, option="--page", suffixes=PAGE, force=force)
    spaces = SpaceNames.of(space, "before", "after", "query", "truth")
    result = decide(
        before=spaces.load(before, "before"),
        after=spaces.load(after, "after"),
        query=None if query is None else spaces.load(query, "query"),
        truth=None if truth is None else spaces.load(truth, "truth"),
        max_negative_flips=max_negative_flips,
        min_retention=min_retention,
        metric=metric,
        exclude_column=exclude_column,
        group_column=group,
    )
    if page is not None:
        from midspan.reports import gate_page

        gate_page(result.to_dict(), page)
    if as_json:
        print_json(result.to_dict())
    else:
        print_gate(result)
    exit_with(result.verdict)
