"""`midspan gallery adopt | reconcile | hand-over | detach`: over the data of an application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midspan.cli import exits
from midspan.cli.output import JSON_OPTION, print_json, print_table
from midspan.cli.outputs import FORCE, check_file
from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.gallery import Gallery
    from midspan.gallery.adoption.files import VectorFile
    from midspan.gallery.adoption.survey import Survey
    from midspan.spaces import Space

LOCATION = typer.Argument(
    help="Of the gallery: postgresql://…/db?table=shop next to the table; any location for files."
)


def adopt(
    location: Annotated[str, LOCATION],
    space_name: Annotated[
        str, typer.Option(help="Name of the space: the model that made these vectors.")
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from", help="Files to copy: vectors.npy, .parquet, lance://…, a faiss index."
        ),
    ] = None,
    ids: Annotated[
        Path | None, typer.Option(help="With .npy and faiss: a text file, one id a line.")
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="PostgreSQL: NAME or SCHEMA.NAME, in the same database.")
    ] = None,
    collection: Annotated[
        str | None,
        typer.Option(help="Qdrant, Milvus: the application's collection, on the same server."),
    ] = None,
    vector_name: Annotated[str, typer.Option(help="Of --collection: which of its vectors.")] = "",
    watermark: Annotated[
        str | None,
        typer.Option(help="Of --collection: a number that grows with each write."),
    ] = None,
    id: Annotated[
        str | None, typer.Option(help="Column of the ids: unique; default: id, in files ids.")
    ] = None,
    vector: Annotated[
        str | None,
        typer.Option(help="Column of the vectors; default: embedding, in files vectors."),
    ] = None,
    uri: Annotated[str | None, typer.Option(help="Column that says where the image is.")] = None,
    payload: Annotated[
        str, typer.Option(help="Columns that filters and hits show: brand,price.")
    ] = "",
    metric: Annotated[
        str | None,
        typer.Option("--distance", help="cosine, l2 or dot; default: that of its index."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look at every row and change nothing.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Make a gallery over a table of an application, in place; or from files.

    The application continues to read and write its table; triggers notify the gallery. Files are
    copied. Stopped, the same command continues.
    """
    from midspan.gallery.adoption.collection import (
        FIRST,
        CollectionBinding,
        adopt_collection,
        survey_collection,
    )
    from midspan.gallery.adoption.files import FileColumns, open_file
    from midspan.gallery.adoption.load import survey_file
    from midspan.gallery.adoption.postgres_adopt import adopt_table
    from midspan.gallery.adoption.postgres_table import TableColumns, survey_table
    from midspan.gallery.location import parse_location

    if sum(given is not None for given in (table, source, collection)) != 1:
        raise ConfigError(
            "expected one of --table NAME (PostgreSQL), --collection NAME (Qdrant, Milvus), both "
            "in place, and --from FILE"
        )
    if collection is not None:
        bound = CollectionBinding(collection, vector_name, FIRST, uri, _names(payload), watermark)
        if dry_run:
            _print_survey(survey_collection(location, bound), as_json=as_json)
            return
        with adopt_collection(location, bound, space_name=space_name, show=True) as gallery:
            _print_adopted(gallery, as_json=as_json)
        return
    if source is not None:
        names = FileColumns(id or "ids", vector or "vectors", uri, _names(payload))
        file = open_file(source, ids=ids, names=names)
        if dry_run:
            _print_survey(survey_file(file, metric=_metric(metric)), as_json=as_json)
            return
        _import(location, file, space_name=space_name, metric=_metric(metric), as_json=as_json)
        return
    assert table is not None
    columns = TableColumns(
        id=id or "id", vector=vector or "embedding", uri=uri, payload=_names(payload)
    )
    if dry_run:
        survey = survey_table(parse_location(location), table, columns, metric=_metric(metric))
        _print_survey(survey, as_json=as_json)
        return
    gallery = adopt_table(
        location, table, columns, space_name=space_name, metric=_metric(metric), show=True
    )
    with gallery:
        _print_adopted(gallery, as_json=as_json)


def _print_adopted(gallery: Gallery, *, as_json: bool) -> None:
    counts, space = gallery.count(), gallery.space
    shown = {
        "location": gallery.location,
        "owner": gallery.owner,
        "items": counts.items,
        "without": counts.without,
        "space": space.fingerprint,
    }
    if as_json:
        print_json(shown)
        return
    print(f"{gallery.location} shows {counts.items:,} items of {gallery.owner} in {space}")
    if counts.without:
        print(f"{counts.without:,} of them have no vector that can be compared")


def _import(
    location: str, file: VectorFile, *, space_name: str, metric: Any, as_json: bool
) -> None:
    from midspan.cli.indexes import build_indexes
    from midspan.gallery.adoption.load import import_file

    gallery, skipped = import_file(location, file, space_name=space_name, metric=metric, show=True)
    with gallery:
        build_indexes(gallery)
        items, space = len(gallery), gallery.space
    if as_json:
        print_json({"location": location, "items": items, "skipped": skipped})
        return
    print(f"{location} holds {items:,} items of {file.shown} in {space}")
    if skipped:
        print(f"{skipped:,} rows have no usable vector and were left out")


def export(
    location: Annotated[str, typer.Argument(help="Of the gallery.")],
    path: Annotated[Path, typer.Argument(help="The parquet file to write.")],
    space: Annotated[
        str | None, typer.Option(help="Name or fingerprint of the space; default: the live one.")
    ] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Write every item that has a vector in the space, with address, payload and label, as parquet.

    Items without such a vector are counted, and the exit code is 1.
    """
    from midspan.gallery import Gallery
    from midspan.gallery.adoption.load import export_parquet

    check_file(path, option="PATH", suffixes=(".parquet",), force=force)
    with Gallery.open(location) as gallery:
        chosen = None if space is None else _space_named(space, gallery.state.spaces)
        items = len(gallery)
        count = export_parquet(gallery, path, space=chosen, show=True)
    missing = items - count
    if as_json:
        print_json({"path": str(path), "items": count, "without_vector": missing})
    else:
        print(f"{path}: {count:,} items")
        if missing:
            print(f"{missing:,} of {items:,} items have no vector in this space and are left out")
    if missing:
        raise typer.Exit(exits.INCOMPLETE)


def _space_named(name: str, spaces: Mapping[str, Space]) -> str:
    """The fingerprint of a space that is given by its name or by its fingerprint."""
    matching = [key for key, one in spaces.items() if name in (key, one.name)]
    if len(matching) != 1:
        known = ", ".join(f"{one.name} ({key})" for key, one in spaces.items())
        what = "no space" if not matching else f"{len(matching)} spaces"
        raise ConfigError(f"--space {name}: expected one of {known}; got {what} of that name")
    return matching[0]


def reconcile(location: Annotated[str, LOCATION], as_json: bool = JSON_OPTION) -> None:
    """Compare an adopted gallery with the application's data, row by row, and repair it.

    A table: needed where no trigger saw a change (replication, disabled triggers). A collection:
    needed regularly, for servers have no triggers.
    """
    from midspan.gallery import Gallery
    from midspan.gallery.adoption.collection import reconcile_collection
    from midspan.gallery.adoption.postgres_adopt import reconcile_table

    with Gallery.open(location) as gallery:
        in_table = gallery.engine == "postgresql"
        reconcile = reconcile_table if in_table else reconcile_collection
        done = reconcile(gallery, show=True)
    if as_json:
        print_json({"location": location, **asdict(done)})
        return
    print(
        f"{done.added:,} items added, {done.replaced:,} replaced, {done.annotated:,} with another "
        f"payload, {done.removed:,} removed"
    )


def hand_over(
    location: Annotated[str, LOCATION],
    back: Annotated[
        bool,
        typer.Option("--back", help="Undo: the application's column holds the old vectors again."),
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """After `upgrade finish`: the application's own column holds the new vectors.

    The old ones stay in a column of their own until `upgrade forget`. `upgrade rollback` takes a
    hand-over back by itself.
    """
    from midspan.gallery import Gallery
    from midspan.gallery.adoption.postgres_handover import hand_over_table, take_back_table

    with Gallery.open(location) as gallery:
        if back:
            without = take_back_table(gallery)
            shown: dict[str, Any] = {"location": gallery.location, "without": without}
            words = f"the former vectors are back; {without:,} rows added since have none"
        else:
            done = hand_over_table(gallery, show=True)
            shown = {"location": gallery.location, **asdict(done)}
            words = (
                f"{done.rows:,} rows of {done.table}: {done.column} holds the new vectors, "
                f"{done.former} the old ones until midspan upgrade forget"
            )
    print_json(shown) if as_json else print(words)


def detach(
    location: Annotated[str, LOCATION],
    keep: Annotated[
        str | None,
        typer.Option(help="A new table for the ids and the newest vectors of the gallery."),
    ] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Remove an adopted gallery; the application's table stays as it is."""
    from midspan.gallery import Gallery
    from midspan.gallery.adoption.collection import detach_collection
    from midspan.gallery.adoption.postgres_adopt import detach_table

    gallery = Gallery.open(location)
    try:
        owner, kept = gallery.owner, 0
        if gallery.engine == "postgresql":
            kept = detach_table(gallery, keep=keep)
        elif keep is not None:
            raise ConfigError("--keep is for tables; export first: midspan gallery export")
        else:
            detach_collection(gallery)
    finally:
        gallery.close()
    if as_json:
        print_json({"location": location, "owner": owner, "kept": kept, "table": keep})
        return
    print(f"the gallery is gone, {owner} is as its application left it")
    if keep is not None:
        print(f"{kept:,} vectors are in {keep}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _metric(text: str | None) -> Any:
    if text not in (None, "cosine", "l2", "dot"):
        raise ConfigError(f"--distance {text}; expected cosine, l2 or dot")
    return text


def _print_survey(survey: Survey, *, as_json: bool) -> None:
    if as_json:
        print_json(survey.to_dict())
        return
    print_table(survey.source, ["", ""], [[name, value] for name, value in survey.table().items()])
    for problem in survey.problems:
        print(f"✗ {problem}")
    print("nothing was changed")
