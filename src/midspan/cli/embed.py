"""`midspan embed` and `midspan export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from midspan.cli.embed_ray import embed_set
from midspan.cli.output import JSON_OPTION, print_json, print_table
from midspan.cli.ray_workers import GPUS, RAY, SHIP, WORKERS, workers_from
from midspan.errors import ConfigError, DataError, EncoderError

if TYPE_CHECKING:
    from midspan.data import ImageSet, Skipped

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
        typer.Option(min=1, help="Default 64 images on a CPU, else 256; with --ray 256 at a time."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …")] = None,
    ray: Annotated[str | None, RAY] = None,
    workers: Annotated[int | None, WORKERS] = None,
    gpus_per_worker: Annotated[float | None, GPUS] = None,
    ship_images: Annotated[bool, SHIP] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Turn images into vectors, and keep with them the space they live in.

    With --ray the workers of a cluster embed; this machine lists the images and writes the file.
    """
    from midspan.data import Skipped

    skipped: list[Skipped] = []

    def on_failure(name: str, why: str) -> None:
        skipped.append(Skipped(name, why))

    cluster = workers_from(ray, workers, gpus_per_worker, ship_images=ship_images)
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
        from midspan.encoders import load_encoder
        from midspan.spaces import Embeddings

        loaded = load_encoder(encoder, device=device)
        embeddings = loaded.embed(
            _images(images, split, strict=strict, skipped=skipped)
            if loaded.takes_images
            else Embeddings.load(images),
            batch_size=batch_size,
            device=device,
            on_failure=None if strict else on_failure,
        )
    if len(embeddings) == 0:
        raise DataError(f"{images}: nothing to embed; {len(skipped)} images could not be read")
    path = embeddings.save(out)
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


def _images(images: Path, split: Split, *, strict: bool, skipped: list[Skipped]) -> ImageSet:
    """The part that is asked for; what is no image in the whole of it goes to `skipped`."""
    from midspan.data import open_images

    found = open_images(images, strict=strict)
    skipped += found.skipped
    if split == "all":
        return found
    return found.train if split == "train" else found.test


def export(
    encoder: Annotated[str, typer.Argument(help="Run or encoder folder.")],
    out: Annotated[Path, typer.Option(help="Where to write model.onnx.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """Write an encoder as one ONNX file, checked against the original."""
    from midspan.encoders import Encoder, export_onnx, load_encoder

    loaded = load_encoder(encoder)
    if not isinstance(loaded, Encoder):
        raise EncoderError(f"{encoder} is an ONNX file already")
    path = export_onnx(loaded, out)
    if as_json:
        print_json({"onnx": str(path), "fingerprint": loaded.space.fingerprint})
        return
    print(f"{loaded.space} → {path}")
