"""`midspan embed` and `midspan export`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from midspan.cli.embed_ray import embed_set
from midspan.cli.output import JSON_OPTION, print_json, print_table
from midspan.cli.outputs import EMBEDDINGS, FORCE, ONNX, check_file
from midspan.cli.ray_workers import GPUS, RAY, SHIP, WORKERS, workers_from
from midspan.cli.runtime import DEVICE, RUNTIME, RuntimeName
from midspan.cli.spaces import SPACE, SpaceNames
from midspan.errors import ConfigError, DataError, EncoderError

if TYPE_CHECKING:
    from midspan.data import ImageSet, Skipped
    from midspan.encoders.embedding import OnFailure
    from midspan.encoders.load import Embedder
    from midspan.spaces import Embeddings

STEP = 256  # images of one step of an encoder, or a multiple of it, on every device
PARCEL = 256  # items that travel to a worker at once; it cuts them into steps of its own
Split = Literal["all", "train", "test"]


def embed(
    encoder: Annotated[
        str,
        typer.Argument(help="Run or encoder folder, model.onnx, efficientnet-lite0, hf:…, timm:…"),
    ],
    images: Annotated[Path, typer.Argument(help="Folder, .csv, .npz, .tar shards; or vectors.")],
    out: Annotated[Path, typer.Option(help="Where to write: .npz or .parquet.")],
    split: Annotated[Split, typer.Option(help="Which part of the images.")] = "all",
    strict: Annotated[bool, typer.Option(help="A broken image is an error.")] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Default 256; on a CPU 64 or fewer images; with --ray 256."),
    ] = None,
    device: Annotated[str | None, DEVICE] = None,
    runtime: Annotated[RuntimeName, RUNTIME] = "auto",
    ray: Annotated[str | None, RAY] = None,
    workers: Annotated[int | None, WORKERS] = None,
    gpus_per_worker: Annotated[float | None, GPUS] = None,
    ship_images: Annotated[bool, SHIP] = False,
    space: Annotated[list[str] | None, SPACE] = None,
    force: Annotated[bool, FORCE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Turn images into vectors, saved with the space they are in.

    Images are embedded in batches, which wait in OUT.batches: stopped, the same command continues.
    With --ray the workers of a cluster embed; this machine lists the images and writes the file.
    """
    from midspan.data import Skipped

    skipped: list[Skipped] = []

    def on_failure(name: str, why: str) -> None:
        skipped.append(Skipped(name, why))

    check_file(out, option="--out", suffixes=EMBEDDINGS, force=force)
    cluster = workers_from(ray, workers, gpus_per_worker, ship_images=ship_images)
    journal: Path | None = None
    if cluster is not None:
        if device is not None:
            raise ConfigError("--device is for this machine; with --ray give --gpus-per-worker")
        embeddings = embed_set(
            _images(images, split, strict=strict, skipped=skipped),
            encoder,
            workers=cluster,
            ship_images=ship_images,
            batch_size=batch_size or PARCEL,
            on_failure=None if strict else on_failure,
        )
    else:
        from midspan.encoders import load_embedder

        loaded = load_embedder(encoder, device=device, runtime=runtime)
        if loaded.takes_images:
            if space:
                raise ConfigError(
                    f"--space is for files of vectors; images get the space of {encoder}"
                )
            pictures = _images(images, split, strict=strict, skipped=skipped)
            embeddings = _in_batches(
                loaded, pictures, out, batch_size=batch_size, device=device, skipped=skipped
            )
            journal = out.with_name(out.name + ".batches")
        else:
            stored = SpaceNames.of(space, "images").load(images, "images")
            embeddings = loaded.embed(stored, batch_size=batch_size, device=device)
    if len(embeddings) == 0:
        raise DataError(f"{images}: nothing to embed; {len(skipped)} images could not be read")
    path = embeddings.save(out)
    if journal is not None:
        shutil.rmtree(journal, ignore_errors=True)
    if as_json:
        print_json(
            {
                "embeddings": str(path),
                "items": len(embeddings),
                "space": {
                    "name": embeddings.space.name,
                    "dim": embeddings.space.dim,
                    "metric": embeddings.space.metric,
                    "fingerprint": embeddings.space.fingerprint,
                },
                "skipped": [[item.path, item.reason] for item in skipped],
            }
        )
        return
    print(f"{len(embeddings):,} vectors in {embeddings.space} → {path}")
    if skipped:
        rows = [[item.path, item.reason] for item in skipped]
        print_table(f"{len(rows)} images were skipped", ["image", "reason"], rows)


def _in_batches(
    encoder: Embedder,
    images: ImageSet,
    out: Path,
    *,
    batch_size: int | None,
    device: str | None,
    skipped: list[Skipped],
) -> Embeddings:
    from midspan.cli.batches import embed_with_journal
    from midspan.data import Skipped

    def embed(part: ImageSet, on_failure: OnFailure) -> Embeddings:
        return encoder.embed(
            part,
            batch_size=batch_size,
            device=device,
            progress=False,
            on_failure=None if images.strict else on_failure,
        )

    made, failures = embed_with_journal(
        images,
        embed,
        space=encoder.space,
        out=out,
        step=batch_size or STEP,
        say=lambda text: typer.echo(text, err=True),
    )
    skipped += [Skipped(id, why) for id, why in failures]
    return made


def _images(images: Path, split: Split, *, strict: bool, skipped: list[Skipped]) -> ImageSet:
    """The requested part; rows that are no images go to `skipped`."""
    from midspan.data import open_images

    source = open_images(images, strict=strict)
    skipped += source.skipped
    if split == "all":
        return source
    return source.train if split == "train" else source.test


def export(
    encoder: Annotated[str, typer.Argument(help="Run or encoder folder.")],
    out: Annotated[Path, typer.Option(help="Where to write model.onnx.")],
    force: Annotated[bool, FORCE] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Write an encoder as one ONNX file, checked against the original."""
    from midspan.encoders import Encoder, export_onnx, load_encoder

    check_file(out, option="--out", suffixes=ONNX, force=force)
    loaded = load_encoder(encoder)
    if not isinstance(loaded, Encoder):
        raise EncoderError(f"{encoder} is an ONNX file already")
    path = export_onnx(loaded, out)
    if as_json:
        print_json({"onnx": str(path), "fingerprint": loaded.space.fingerprint})
        return
    print(f"{loaded.space} → {path}")
