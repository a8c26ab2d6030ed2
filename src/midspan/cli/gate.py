"""`midspan gate`: PASS, WARN or FAIL, with exit code 0 or 1."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from midspan.cli.output import JSON_OPTION, print_gate, print_json


def gate(
    before: Annotated[Path, typer.Option(help="Embeddings that serve today.")],
    after: Annotated[Path, typer.Option(help="Embeddings of the gallery that would serve.")],
    query: Annotated[
        Path | None, typer.Option(help="The new encoder's queries on it; default: itself.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="True new embeddings, if --after is mapped or mixed.")
    ] = None,
    max_negative_flips: Annotated[
        float, typer.Option(help="Share of queries that may turn from right to wrong.")
    ] = 0.01,
    min_retention: Annotated[
        float, typer.Option(help="Share of the reference's quality that must be left.")
    ] = 0.95,
    metric: Annotated[str, typer.Option(help="map, recall@1, map@r …; needs labels.")] = "map",
    group: Annotated[str | None, typer.Option(help="Column to look at group by group.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with the evidence here.")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Decide whether to switch: exit code 0 for PASS and WARN, 1 for FAIL.

    Labels are taken from --before; without labels, agreement with the reference's own ranking is
    measured instead. The reference is --truth if given, else what serves today.
    """
    from midspan.spaces import Embeddings
    from midspan.upgrade import gate as decide

    def load(path: Path | None) -> Embeddings | None:
        return None if path is None else Embeddings.load(path)

    result = decide(
        before=Embeddings.load(before),
        after=Embeddings.load(after),
        query=load(query),
        truth=load(truth),
        max_negative_flips=max_negative_flips,
        min_retention=min_retention,
        metric=metric,
        group_column=group,
    )
    if page is not None:
        from midspan.reports import gate_page

        gate_page(result.to_dict(), page)
    if as_json:
        print_json(result.to_dict())
    else:
        print_gate(result)
    if result.verdict == "FAIL":
        raise typer.Exit(1)
