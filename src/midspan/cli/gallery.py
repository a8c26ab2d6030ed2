"""`midspan gallery create | add | search | info | verify | quantise | copy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midspan.cli.output import JSON_OPTION, print_json, print_table
from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.gallery import Gallery
    from midspan.spaces import Embeddings

app = typer.Typer(help="Stored items, their vectors by space, and search.", no_args_is_help=True)

LOCATION = typer.Argument(
    help="shop.midspan, postgresql://…/db?table=shop, milvus://host:port/shop, qdrant://host/shop"
)
EMBEDDINGS = typer.Option(help="Vectors to store: .npz or .parquet.")
IMAGES = typer.Option(help="Images to embed and store: folder, .csv, .npz, .tar shards.")
ENCODER = typer.Option(help="Encoder for --images: run folder, model.onnx, hf:… …")
GROUP_BY = typer.Option(help="Images that share this column are views of one item: fuse them.")


@app.command("create")
def create(
    location: Annotated[str, LOCATION],
    embeddings: Annotated[Path | None, EMBEDDINGS] = None,
    images: Annotated[Path | None, IMAGES] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    group_by: Annotated[str | None, GROUP_BY] = None,
    quantise: Annotated[
        str, typer.Option(help="Vectors in memory: none (float32), int8 or binary; files only.")
    ] = "none",
    as_json: bool = JSON_OPTION,
) -> None:
    """Make a gallery for the space of these vectors, and fill it with them."""
    from midspan.gallery import Gallery
    from midspan.gallery.stores import check_place

    chosen = check_place(location, quantise)
    vectors, uris = _items(embeddings, images, encoder, group_by)
    with Gallery.create(location, vectors.space, quantise=chosen) as gallery:
        _fill(gallery, vectors, uris, replace=False)
        _print_info(gallery, as_json=as_json)


@app.command("add")
def add(
    location: Annotated[str, LOCATION],
    embeddings: Annotated[Path | None, EMBEDDINGS] = None,
    images: Annotated[Path | None, IMAGES] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    group_by: Annotated[str | None, GROUP_BY] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Items that are there already get these vectors.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Add items. Vectors of a space that the gallery does not know are refused."""
    from midspan.gallery import Gallery

    vectors, uris = _items(embeddings, images, encoder, group_by)
    with Gallery.open(location, encoder_space=vectors.space) as gallery:
        _fill(gallery, vectors, uris, replace=replace)
        _print_info(gallery, as_json=as_json)


@app.command("search")
def search(
    location: Annotated[str, LOCATION],
    vectors: Annotated[Path, typer.Option(help="Queries: .npz or .parquet.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Results for each query.")] = 10,
    where: Annotated[
        str | None, typer.Option("--filter", help="Payload filter as JSON: '{\"labels\": 3}'.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Lowest score that counts.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Compare with every vector.")] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """The k nearest items of each query, in whatever state an upgrade is."""
    from midspan.gallery import Gallery
    from midspan.spaces import Embeddings
    from midspan.upgrade import search as search_routed

    query = Embeddings.load(vectors)
    with Gallery.open(location) as gallery:
        found = search_routed(
            gallery, query, k=k, filter=_filter(where), threshold=threshold, exact=exact
        )
    if as_json:
        rows = [
            [{"id": hit.id, "score": hit.score, "space": hit.space.name} for hit in hits]
            for hits in found
        ]
        print_json({"results": rows})
        return
    rows_for_people = [
        [str(name), str(rank), hit.id, f"{hit.score:.4f}", hit.space.name]
        for name, hits in zip(query.ids, found, strict=True)
        for rank, hit in enumerate(hits, start=1)
    ]
    print_table(location, ["query", "rank", "item", "score", "space"], rows_for_people)


@app.command("info")
def info(location: Annotated[str, LOCATION], as_json: bool = JSON_OPTION) -> None:
    """What a gallery holds, in numbers."""
    from midspan.gallery import Gallery

    with Gallery.open(location) as gallery:
        _print_info(gallery, as_json=as_json)


@app.command("verify")
def verify(location: Annotated[str, LOCATION], as_json: bool = JSON_OPTION) -> None:
    """Look at every item and vector, change nothing; exit code 1 if something is wrong."""
    from midspan.gallery import Gallery

    with Gallery.open(location) as gallery:
        result = gallery.verify(show=True)
    if as_json:
        print_json(result.to_dict())
    else:
        rows = [
            [
                one.name,
                *(f"{n:,}" for n in (one.vectors, one.unusable, one.unnormalised, one.duplicates)),
            ]
            for one in result.spaces
        ]
        columns = ["space", "vectors", "unusable", "not of length 1", "duplicates"]
        print_table(f"{location}: {result.items:,} items", columns, rows)
        for problem in result.problems:
            print(f"✗ {problem}")
        for note in result.notes:
            print(f"· {note}")
        if result.ok:
            print("✓ all is well")
    if not result.ok:
        raise typer.Exit(1)


@app.command("quantise")
def quantise(
    location: Annotated[str, LOCATION],
    how: Annotated[str, typer.Argument(help="none (float32 in memory), int8 or binary.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Hold vectors smaller in memory, or not. Processes that have it open follow by themselves."""
    from midspan.gallery import Gallery, set_quantise

    with Gallery.open(location) as gallery:
        set_quantise(gallery, how)
        _print_info(gallery, as_json=as_json)


@app.command("copy")
def copy(
    source: Annotated[str, typer.Argument(help="Where it is.")],
    target: Annotated[str, typer.Argument(help="Where it shall be; may be another engine.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Copy a gallery, from one engine to another if you like. Stopped, it goes on when repeated."""
    from dataclasses import asdict

    from midspan.gallery import Gallery
    from midspan.gallery import copy as copy_gallery

    with Gallery.open(source) as gallery:
        report = asdict(copy_gallery(gallery, target, show=True))
    if as_json:
        print_json({"source": source, "target": target, **report})
        return
    numbers = ", ".join(f"{name} {value}" for name, value in report.items())
    print(f"{source} → {target}: {numbers}")


def _items(
    embeddings: Path | None, images: Path | None, encoder: str | None, group_by: str | None
) -> tuple[Embeddings, list[str | None] | None]:
    """(vectors, where each image is); vectors from a file or embedded now."""
    from midspan.cli.views import embed_views, one_item_each
    from midspan.spaces import Embeddings

    if (embeddings is None) == (images is None):
        raise ConfigError("give either --embeddings, or --images with --encoder")
    if embeddings is not None:
        return one_item_each(Embeddings.load(embeddings), None, group_by=group_by)
    if encoder is None:
        raise ConfigError("--images wants --encoder: the one whose vectors the gallery holds")
    from midspan.data import open_images

    assert images is not None
    pictures = open_images(images)
    failed: list[str] = []
    vectors = embed_views(
        encoder, pictures, on_failure=lambda name, why: failed.append(f"{name}: {why}")
    )
    for line in [*map(str, pictures.skipped), *failed]:
        typer.echo(f"skipped {line}", err=True)
    places = {str(name): row for row, name in enumerate(pictures.ids)}
    uris: list[str | None] = [pictures.uri(places[str(name)]) for name in vectors.ids]
    return one_item_each(vectors, uris, group_by=group_by)


def _fill(
    gallery: Gallery, vectors: Embeddings, uris: list[str | None] | None, *, replace: bool
) -> None:
    """Columns of the embeddings become the payload, so that they can be filtered by."""
    columns = {n: c.tolist() for n, c in vectors.columns.items() if c.ndim == 1}
    payloads = [
        {name: values[row] for name, values in columns.items()} for row in range(len(vectors))
    ]
    write = gallery.put if replace else gallery.add
    write(vectors, uris=uris, payloads=payloads, show=True)


def _filter(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--filter is not JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise ConfigError("--filter wants a JSON object, such as '{\"labels\": 3}'")
    return parsed


def _print_info(gallery: Gallery, *, as_json: bool) -> None:
    from midspan.gallery import QUANTISE

    found = gallery.info()
    if as_json:
        print_json(found.to_dict())
        return
    rows = [[name, f"{count:,}"] for name, count in found.by_space.items()]
    rows += [["without a vector", f"{found.without:,}"], ["failed", f"{found.failed:,}"]]
    notes = []
    if found.quantise is not None:
        notes.append(f"vectors: {QUANTISE[found.quantise]}")
    if found.upgrade is not None:
        notes.append(f"upgrade {found.upgrade.get('phase')}; see: midspan upgrade status")
    title = f"{found.location}: {found.items:,} items"
    print_table(title, ["space", "items"], rows, note="\n".join(notes))
