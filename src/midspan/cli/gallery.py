"""`midspan gallery …`: store, search, maintain and copy items."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from midspan.cli import exits, gallery_adopt, gallery_backup
from midspan.cli.gallery_items import create_or_continue, items_from, mark_filled, with_further
from midspan.cli.indexes import build_indexes, index_words
from midspan.cli.output import JSON_OPTION, print_json, print_table
from midspan.cli.runtime import BATCH, DEVICE, RUNTIME, Computing, RuntimeName
from midspan.cli.spaces import SPACE, SpaceNames
from midspan.cli.verbs import Verbs
from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.gallery import Gallery
    from midspan.gallery.tenants import Tenant
    from midspan.spaces import Embeddings

app = typer.Typer(
    cls=Verbs, help="Stored items, their vectors by space, and search.", no_args_is_help=True
)

LOCATION = typer.Argument(
    help="shop.midspan, postgresql://…/db?table=shop, milvus://host:port/shop, qdrant://host/shop"
)
EMBEDDINGS = typer.Option("--vectors", help="Vectors to store: .npz, .parquet or .npy.")
IMAGES = typer.Option(
    help="Images to embed and store: folder, .csv, .npz, .tar shards. With --vectors: where the "
    "image of each id is, for `upgrade run --encoder`."
)
ENCODER = typer.Option(help="Encoder for --images: run folder, model.onnx, hf:… …")
ALSO = typer.Option(
    "--also",
    help="Vectors of the same items in a further space: during an upgrade that promises a rollback "
    "items need an old vector too.",
)
ALSO_ENCODER = typer.Option(help="A further encoder for --images, whose vectors are stored too.")
TENANT = typer.Option(
    help="One tenant of a gallery that several share: its own ids, and only its items."
)
GROUP_BY = typer.Option(help="Images that share this column are views of one item: fuse them.")


@app.command("create")
def create(
    location: Annotated[str, LOCATION],
    embeddings: Annotated[Path | None, EMBEDDINGS] = None,
    images: Annotated[Path | None, IMAGES] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    group_by: Annotated[str | None, GROUP_BY] = None,
    space: Annotated[list[str] | None, SPACE] = None,
    runtime: Annotated[RuntimeName, RUNTIME] = "auto",
    device: Annotated[str | None, DEVICE] = None,
    batch_size: Annotated[int | None, BATCH] = None,
    quantise: Annotated[
        str, typer.Option(help="Vectors in memory: none (float32), int8 or binary; files only.")
    ] = "none",
    as_json: bool = JSON_OPTION,
) -> None:
    """Make a gallery for the space of these vectors, and fill it with them.

    Images are embedded and stored in batches: stopped, the same command continues.
    """
    from midspan.gallery.location import parse_location
    from midspan.gallery.rules import check_quantise, refuse_quantise

    chosen = check_quantise(quantise)
    if chosen != "none":
        refuse_quantise(parse_location(location).scheme, chosen)
    how = Computing(runtime, device, batch_size)
    items = items_from(embeddings, images, encoder, group_by, space, computing=how)
    with create_or_continue(location, items, quantise=chosen) as gallery:
        items.write(gallery, replace=False, skip_present=True)
        mark_filled(gallery, items)
        build_indexes(gallery)
        _print_info(gallery, as_json=as_json)


@app.command("add")
def add(
    location: Annotated[str, LOCATION],
    embeddings: Annotated[Path | None, EMBEDDINGS] = None,
    images: Annotated[Path | None, IMAGES] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    also: Annotated[Path | None, ALSO] = None,
    also_encoder: Annotated[str | None, ALSO_ENCODER] = None,
    group_by: Annotated[str | None, GROUP_BY] = None,
    space: Annotated[list[str] | None, SPACE] = None,
    runtime: Annotated[RuntimeName, RUNTIME] = "auto",
    device: Annotated[str | None, DEVICE] = None,
    batch_size: Annotated[int | None, BATCH] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Existing items get these vectors.")
    ] = False,
    tenant: Annotated[str | None, TENANT] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Add items. Vectors of a space that the gallery does not know are refused.

    Images are embedded and stored in batches: stopped, the same command skips what is there.
    """
    from midspan.gallery import Gallery

    how = Computing(runtime, device, batch_size)
    items = with_further(
        items_from(embeddings, images, encoder, group_by, space, computing=how),
        also,
        also_encoder,
        space,
        computing=how,
    )
    with Gallery.open(location, encoder_space=items.space) as gallery:
        items.write(_part(gallery, tenant), replace=replace, skip_present=False)
        build_indexes(gallery)
        _print_info(gallery, as_json=as_json)


@app.command("search")
def search(
    location: Annotated[str, LOCATION],
    vectors: Annotated[
        list[Path] | None,
        typer.Option(
            help="Queries: .npz, .parquet or .npy. Twice, the same queries in the old and the new "
            "space: an upgrade in mode both."
        ),
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="A query image; may be repeated. Needs --encoder.")
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="A query in words; may be repeated. Needs --encoder with a text tower."),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="Embeds --image or --text. Twice, the old and the new one: an upgrade in mode "
            "both."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Results for each query.")] = 10,
    where: Annotated[
        str | None, typer.Option("--filter", help='Payload filter as JSON: \'{"labels": "cat"}\'.')
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Lowest score (cosine) that counts.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Compare with every vector.")] = False,
    tenant: Annotated[str | None, TENANT] = None,
    space: Annotated[list[str] | None, SPACE] = None,
    runtime: Annotated[RuntimeName, RUNTIME] = "auto",
    device: Annotated[str | None, DEVICE] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """The k nearest items of each query, also during an upgrade."""
    from midspan.gallery import Gallery

    queries = _queries(vectors, image, text, encoder, space, how=Computing(runtime, device))
    query = queries[0]
    if len(queries) > 1:
        queries = [query, *(query.paired_with(one)[1] for one in queries[1:])]
    with Gallery.open(location) as gallery:
        results = _part(gallery, tenant).search(
            queries, k=k, filter=_filter(where), threshold=threshold, exact=exact
        )
    if as_json:
        rows = [
            [
                {
                    "id": hit.id,
                    "score": hit.score,
                    "rank_score": hit.rank_score,
                    "space": hit.space.name,
                }
                for hit in hits
            ]
            for hits in results
        ]
        print_json({"results": rows})
        return
    rows_for_people = [
        [str(name), str(rank), hit.id, f"{hit.score:.4f}", hit.space.name]
        for name, hits in zip(query.ids, results, strict=True)
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
    """Check every item and vector, change nothing; exit code 1 if something is wrong."""
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
        raise typer.Exit(exits.INCOMPLETE)


@app.command("optimise")
def optimise(location: Annotated[str, LOCATION], as_json: bool = JSON_OPTION) -> None:
    """Build the indexes that are due, remove what interrupted writes left, return free disk."""
    from midspan.gallery import Gallery

    with Gallery.open(location) as gallery:
        gallery.optimise()
        _print_info(gallery, as_json=as_json)


@app.command("index-payload")
def index_payload(
    location: Annotated[str, LOCATION],
    field: Annotated[str, typer.Argument(help="Payload field, such as brand or maker.country.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Index a payload field, so that a filter which few items pass is fast."""
    from midspan.gallery import Gallery

    with Gallery.open(location) as gallery:
        gallery.index_payload(field)
        _print_info(gallery, as_json=as_json)


@app.command("expire")
def expire(
    location: Annotated[str, LOCATION],
    field: Annotated[
        str | None,
        typer.Option(help="Payload field with the end of an item, in seconds since 1970."),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Items expire no more.")] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Remove expired items, now and from now on."""
    from midspan.gallery import Gallery

    with Gallery.open(location) as gallery:
        if field is not None or off:
            gallery.expire_by(None if off else field)
        known = gallery.expires_by()
        if known is None and not off:
            raise ConfigError(f"{location}: name the field that says when items end: --field")
        removed = gallery.expire()
    if as_json:
        print_json({"field": known, "removed": removed})
        return
    print(f"{location}: {removed:,} items removed")


@app.command("quantise")
def quantise(
    location: Annotated[str, LOCATION],
    how: Annotated[str, typer.Argument(help="none (float32 in memory), int8 or binary.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Set how vectors are held in memory. Processes that have the gallery open follow."""
    from midspan.gallery import Gallery, set_quantise

    with Gallery.open(location) as gallery:
        set_quantise(gallery, how)
        _print_info(gallery, as_json=as_json)


@app.command("copy")
def copy(
    source: Annotated[str, typer.Argument(help="Where it is.")],
    target: Annotated[str, typer.Argument(help="Location of the copy; may be another engine.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Copy a gallery, also to another engine. If stopped, repeat it to continue."""
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


app.command("backup")(gallery_backup.backup)
app.command("restore")(gallery_backup.restore)
app.command("adopt")(gallery_adopt.adopt)
app.command("export")(gallery_adopt.export)
app.command("reconcile")(gallery_adopt.reconcile)
app.command("hand-over")(gallery_adopt.hand_over)
app.command("detach")(gallery_adopt.detach)


def _part(gallery: Gallery, tenant: str | None) -> Gallery | Tenant:
    return gallery if tenant is None else gallery.tenant(tenant)


def _queries(
    vectors: list[Path] | None,
    image: list[Path] | None,
    text: list[str] | None,
    encoder: list[str] | None,
    space: list[str] | None,
    *,
    how: Computing,
) -> list[Embeddings]:
    """The same queries in each space: from files, or embedded now."""
    if sum(map(bool, (vectors, image, text))) != 1:
        raise ConfigError(
            "expected either --vectors FILE, or --image PHOTO or --text WORDS with --encoder RUN"
        )
    if vectors:
        names = SpaceNames.of(space, "vectors")
        return [names.load(file, "vectors") for file in vectors]
    if not encoder:
        asked = "--text" if text else "--image"
        raise ConfigError(f"{asked} needs --encoder: one whose vectors the gallery can answer")
    from midspan.encoders import load_embedder

    embedders = [load_embedder(one, device=how.device, runtime=how.runtime) for one in encoder]
    if text:
        return [one.embed_text(text) for one in embedders]
    return [one.embed(image or [], progress=False) for one in embedders]


def _filter(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--filter is not JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise ConfigError('--filter: expected a JSON object, such as \'{"labels": "cat"}\'')
    return parsed


def _print_info(gallery: Gallery, *, as_json: bool) -> None:
    from midspan.gallery import QUANTISE

    info = gallery.info()
    if as_json:
        print_json(info.to_dict())
        return
    indexes = {one["name"]: one["index"] for one in info.spaces}
    rows = [
        [name, f"{info.by_space.get(name, 0):,}", index_words(index)]
        for name, index in indexes.items()
    ]
    rows += [["without a vector", f"{info.without:,}", ""], ["failed", f"{info.failed:,}", ""]]
    notes = []
    if info.quantise is not None:
        built = any((one["index"] or {}).get("state") == "ready" for one in info.spaces)
        small = "" if built else "float32, too few for an index; with one: "
        notes.append(f"vectors: {small}{QUANTISE[info.quantise]}")
    if info.upgrade is not None:
        notes.append(f"upgrade {info.upgrade.get('phase')}; see: midspan upgrade status")
    title = f"{info.location}: {info.items:,} items"
    print_table(title, ["space", "items", "index"], rows, note="\n".join(notes))
