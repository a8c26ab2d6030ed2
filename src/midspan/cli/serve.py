"""`midspan serve`: visual search over HTTP, with the upgrade in sight."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from midspan.errors import MissingDependency


def serve(
    gallery: Annotated[
        str, typer.Option(help="shop.midspan, postgresql://…/db?table=shop, milvus://…, qdrant://…")
    ],
    encoder: Annotated[
        str | None, typer.Option(help="Encoder of the gallery's vectors: run folder, model.onnx …")
    ] = None,
    new_encoder: Annotated[
        str | None, typer.Option(help="Encoder to upgrade to, or the one it is upgrading to.")
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option(help="Folder whose images may be shown and read; may be given again."),
    ] = None,
    host: Annotated[str, typer.Option(help="Any other than loopback needs tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8080,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="TOML with read = … and admin = …, mode 600. Or set MIDSPAN_READ_TOKEN and "
            "MIDSPAN_ADMIN_TOKEN."
        ),
    ] = None,
    settings: Annotated[
        Path | None, typer.Option(help="TOML for the rest: see docs/service.md.")
    ] = None,
) -> None:
    """Search by image, item or vector over HTTP; a page; upgrades as background work."""
    try:
        from midspan.service.server import serve as run
        from midspan.service.settings import read_settings
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("fastapi", "uvicorn", "prometheus_client"):
            raise
        raise MissingDependency(
            str(error.name), extra="serve", wanted_for="midspan serve"
        ) from error
    given: dict[str, Any] = {
        "gallery": gallery,
        "encoder": encoder,
        "new_encoder": new_encoder,
        "images": tuple(images or ()),
        "host": host,
        "port": port,
        "tokens": tokens,
    }
    run(read_settings(settings, given))
