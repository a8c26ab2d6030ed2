"""`midspan eval` and `midspan compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from midspan.cli.output import JSON_OPTION, percent, print_json, print_table
from midspan.cli.outputs import FORCE, PAGE, check_file
from midspan.cli.spaces import SPACE, SpaceNames
from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.data import ImageSet
    from midspan.evaluation import Comparison

EXCLUDE = typer.Option(help="Column: items that share its value with the query do not count.")
PROTOCOL = (
    "leave-one-out, query-gallery, sop, cub, inshop, market1501, roxford, rparis, gldv2, lfw, "
    "ijbc-1v1, ijbc-1vn, ijbs or tinyface; default: by whether there is a --gallery."
)


def evaluate(
    query: Annotated[Path, typer.Option(help="Embeddings that ask: .npz or .parquet.")],
    gallery: Annotated[
        Path | None, typer.Option(help="Embeddings that are searched; default: leave one out.")
    ] = None,
    protocol: Annotated[str | None, typer.Option(help=PROTOCOL)] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metric", help="One or several: map,recall@1,map@r; default: the protocol's own."
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the data set's own lists, where it has some.")
    ] = None,
    exclude_column: Annotated[str | None, EXCLUDE] = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="Compare two spaces even if nothing connects them.")
    ] = False,
    space: Annotated[list[str] | None, SPACE] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Measure retrieval by a published protocol."""
    from midspan.config import build
    from midspan.evaluation.protocols import PROTOCOLS

    spaces = SpaceNames.of(space, "query", "gallery")
    name = protocol or ("leave-one-out" if gallery is None else "query-gallery")
    settings: dict[str, object] = {"name": name} if root is None else {"name": name, "root": root}
    if exclude_column is not None:
        if name not in ("leave-one-out", "query-gallery"):
            raise ConfigError(
                f"--exclude-column: the protocol {name} says itself what does not count; it is for "
                "leave-one-out and query-gallery"
            )
        settings["exclude_column"] = exclude_column
    chosen = build(PROTOCOLS, settings, what="protocol")
    result = chosen.evaluate(
        spaces.load(query, "query"),
        spaces.load(gallery, "gallery") if gallery is not None else None,
        metrics=(
            tuple(metric.strip() for metric in metrics.split(","))
            if metrics
            else chosen.default_metrics
        ),
        direct=direct,
    )
    if as_json:
        print_json(
            {
                "protocol": name,
                "n_queries": result.n_queries,
                "n_answerable": result.answerable,
                "n_gallery": result.n_gallery,
                "metrics": result.metrics,
            }
        )
        return
    rows = [[metric, percent(value)] for metric, value in result.metrics.items()]
    note = f"{result.n_queries:,} queries, {result.n_gallery:,} gallery items"
    if result.answerable < result.n_queries:
        left = result.n_queries - result.answerable
        note += f"; {left:,} queries have nothing to find there and are left out of the means"
    print_table(name, ["metric", "%"], rows, note=note)


def compare(
    old: Annotated[Path, typer.Option(help="Embeddings of the old encoder, with labels.")],
    new: Annotated[Path, typer.Option(help="Embeddings of the new encoder, same items.")],
    upper: Annotated[
        Path | None, typer.Option(help="Embeddings of an independently trained new encoder.")
    ] = None,
    direct: Annotated[
        bool, typer.Option("--direct", help="Compare vectors as they are (the default).")
    ] = False,
    bridge: Annotated[
        Path | None, typer.Option(help="Map between the two spaces, made by `bridge fit`.")
    ] = None,
    metric: Annotated[str, typer.Option(help="map, recall@1, map@r …")] = "map",
    exclude_column: Annotated[str | None, EXCLUDE] = None,
    group: Annotated[str | None, typer.Option(help="Column to break the results down by.")] = None,
    images: Annotated[
        Path | None, typer.Option(help="Image folder, .csv, .npz or .tar, for the page.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write a page with all findings here.")] = None,
    space: Annotated[list[str] | None, SPACE] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Old against new: self, cross, gains, P-scores, and which queries got worse."""
    from midspan.evaluation import compare as compare_embeddings

    spaces = SpaceNames.of(space, "old", "new", "upper")
    check_file(page, option="--page", suffixes=PAGE, force=force)
    if direct and bridge is not None:
        raise ConfigError("--direct and --bridge exclude each other: give one of them")
    loaded_bridge = None
    if bridge is not None:
        from midspan.bridges import load_bridge

        loaded_bridge = load_bridge(bridge)
    old_vectors, new_vectors = spaces.load(old, "old"), spaces.load(new, "new")
    upper_vectors = spaces.load(upper, "upper") if upper is not None else None
    result = compare_embeddings(
        old=old_vectors,
        new=new_vectors,
        upper=upper_vectors,
        metric=metric,
        bridge=loaded_bridge,
        exclude_column=exclude_column,
        groups=group,
    )
    if page is not None:
        from midspan.reports import compare_page, evidence

        shown = evidence(
            result, new=new_vectors, upper=upper_vectors, exclude_column=exclude_column
        )
        compare_page(
            result,
            page,
            images=_pictures(images),
            curves=shown.curves,
            rocs=shown.rocs,
            matrix=shown.matrix,
            exclude_column=exclude_column,
        )
    if as_json:
        print_json(result.to_dict())
        return
    _print_comparison(result, metric)
    if page is not None:
        print(f"page: {page.resolve()}")


def _pictures(images: Path | None) -> ImageSet | None:
    if images is None:
        return None
    from midspan.data import open_images

    return open_images(images)


def _print_comparison(result: Comparison, metric: str) -> None:
    document = result.to_dict()
    intervals = document["ci"]
    rows = []
    for name, value in document.items():
        if name in ("ci", "compatible"):
            continue
        low, high = intervals.get(name, (None, None))
        interval = "" if low is None else f"{percent(low)} … {percent(high)}"
        rows.append([name.replace("_", " "), percent(value), interval])
    verdict = "cross is above old self: the new encoder may search the old gallery"
    if not document["compatible"]:
        verdict = "cross is not above old self: the new encoder would search the old gallery worse"
    print_table(f"old against new, {metric}", ["", "%", "95 % interval"], rows, note=verdict)
