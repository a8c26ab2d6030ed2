"""`midspan serve`: visual search over HTTP, with the upgrade in sight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from midspan.cli.runtime import RUNTIME, RuntimeName
from midspan.errors import ConfigError, MissingDependency


def serve(
    galleries: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]LOCATION…",
            help="Galleries by name, the default first: shop=shop.midspan archive=archive.midspan",
            show_default=False,
        ),
    ] = None,
    gallery: Annotated[
        str | None,
        typer.Option(help="shop.midspan, postgresql://…/db?table=shop, milvus://…, qdrant://…"),
    ] = None,
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="Encoder of the gallery's vectors: run folder, model.onnx …; of one of several "
            "galleries: NAME=ENCODER."
        ),
    ] = None,
    new_encoder: Annotated[
        list[str] | None,
        typer.Option(help="Encoder to upgrade to, or the one it is upgrading to; or NAME=ENCODER."),
    ] = None,
    runtime: Annotated[RuntimeName, RUNTIME] = "auto",
    images: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder whose images may be shown and read; may be given again; or NAME=FOLDER."
        ),
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
        from midspan.service.settings import DEFAULT, read_settings
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("fastapi", "uvicorn", "prometheus_client"):
            raise
        raise MissingDependency(
            str(error.name), extra="serve", required_for="midspan serve"
        ) from error
    named = named_galleries([*([gallery] if gallery is not None else []), *(galleries or [])])
    given: dict[str, Any] = {
        "runtime": None if runtime == "auto" else runtime,
        "host": host,
        "port": port,
        "tokens": tokens,
    }
    for option, values in (
        ("encoder", encoder),
        ("new_encoder", new_encoder),
        ("images", images),
    ):
        _assign(option, values or [], given, named)
    if named.keys() == {DEFAULT}:  # as any other setting of the only gallery
        given["gallery"] = named.pop(DEFAULT)["gallery"]
    run(read_settings(settings, given, galleries=list(named.values())))


def named_galleries(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By name; one alone needs none."""
    from midspan.service.settings import DEFAULT, NAME

    named: dict[str, dict[str, Any]] = {}
    for one in given:
        name, equals, location = one.partition("=")
        if not equals or not NAME.fullmatch(name):  # a location may hold = in its settings
            name, location = DEFAULT, one
            if len(given) > 1:
                raise ConfigError(f"{one!r:.200}: of several galleries each is NAME=LOCATION")
        if name in named:
            raise ConfigError(f"two galleries are called {name!r}; give each its own name")
        named[name] = {"name": name, "gallery": location}
    return named


def _assign(
    option: str,
    values: Sequence[str],
    given: dict[str, Any],
    named: dict[str, dict[str, Any]],
) -> None:
    """NAME=VALUE to the gallery of that name, a value alone to all."""
    for one in values:
        name, equals, rest = one.partition("=")
        target, value = (named[name], rest) if equals and name in named else (given, one)
        if option == "images":
            target[option] = (*target.get(option, ()), Path(value))
        elif option in target:
            flag = f"--{option.replace('_', '-')}"
            raise ConfigError(f"{flag} is given twice for one gallery; write {flag} NAME={value}")
        else:
            target[option] = value
