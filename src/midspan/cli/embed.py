"""`midspan embed` and `midspan export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from midspan.cli.output import JSON_OPTION, print_json, print_table
from midspan.errors import DataError, EncoderError

if TYPE_CHECKING:
    from midspan.data import ImageSet


def embed(
    encoder: Annotated[
        str,
        typer.Argument(help="Run or encoder folder, model.onnx, efficientnet-lite0, hf:…, timm:…"),
    ],
    images: Annotated[Path, typer.Argument(help="Folder, .csv or .npz of images (or vectors).")],
    out: Annotated[Path, typer.Option(help="Where to write: .npz or .parquet.")],
    split: Annotated[
        Literal["all", "train", "test"], typer.Option(help="Which part of the images.")
    ] = "all",
    strict: Annotated[bool, typer.Option(help="A broken image is an error.")] = False,
    batch_size: Annotated[int, typer.Option(min=1)] = 256,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Turn images into vectors, and keep with them the space they live in."""
    from midspan.data import Skipped, open_images
    from midspan.encoders import load_encoder
    from midspan.spaces import Embeddings

    loaded = load_encoder(encoder, device=device)
    items: ImageSet | Embeddings
    skipped: list[Skipped] = []
    if loaded.takes_images:
        items = open_images(images, strict=strict)
        skipped += items.skipped
        if split != "all":
            items = items.train if split == "train" else items.test
    else:
        items = Embeddings.load(images)
    embeddings = loaded.embed(
        items,
        batch_size=batch_size,
        device=device,
        on_failure=None if strict else lambda name, why: skipped.append(Skipped(name, why)),
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
