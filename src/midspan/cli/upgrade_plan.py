"""`midspan upgrade plan`: of a gallery that exists, or of a billion items on paper."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from midspan.cli.output import JSON_OPTION, print_json
from midspan.cli.upgrade_options import (
    BRIDGE,
    CALIBRATE,
    ENCODER,
    MODE,
    ORDER,
    SAMPLE,
    TO,
    Mode,
)
from midspan.cli.upgrade_sources import encoder_named, opened, sample_from, target_from
from midspan.cli.upgrade_tables import print_plan, print_scale_plan
from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.upgrade.scale_sample import Sample

DIM = 512  # own choice: what many image encoders give
IMAGE_KB = 100.0  # own choice: a photograph of 800 × 600 pixels as JPEG


def count(text: str) -> int:
    """1e9, 64, 1_000_000."""
    try:
        value = float(text.replace(",", "_"))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}; wanted a number of items: 1e9, 5000000") from error
    if not (1 <= value < 1e15 and value == int(value)):
        raise typer.BadParameter(f"{text!r}; wanted a whole number of 1 or more: 1e9, 5000000")
    return int(value)


def plan(
    location: Annotated[
        str | None, typer.Argument(help="The gallery; with --items it may be left out.")
    ] = None,
    to: Annotated[Path | None, TO] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    mode: Annotated[Mode, MODE] = "direct",
    bridge: Annotated[Path | None, BRIDGE] = None,
    order: Annotated[str, ORDER] = "uncertainty",
    calibrate: Annotated[bool | None, CALIBRATE] = None,
    sample: Annotated[int, SAMPLE] = 300,
    items: Annotated[
        int | None,
        typer.Option(
            parser=count,
            metavar="N",
            help="Plan for so many items (1e9) from costs of one item: measured ones that come "
            "with midspan, --costs, and what a gallery that is named can tell.",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that embed.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs of all workers together.")] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Of the vectors; 512.")] = None,
    image_kb: Annotated[float | None, typer.Option(help="Of an image file; 100.")] = None,
    images_per_second: Annotated[
        float | None, typer.Option(help="Of one worker, or of one GPU, with your encoder.")
    ] = None,
    price_per_worker_hour: Annotated[float | None, typer.Option(help="With its GPUs.")] = None,
    server_cores: Annotated[
        int | None, typer.Option(min=1, help="That a store writes and indexes with; 1.")
    ] = None,
    machine_gb: Annotated[
        float | None, typer.Option(help="Memory of a store's machine; 256.")
    ] = None,
    gbit: Annotated[float | None, typer.Option(help="Network of a worker, per second; 10.")] = None,
    costs: Annotated[
        Path | None, typer.Option(help="Measured by python -m benchmarks.unit_costs --out FILE.")
    ] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """What an upgrade would do, how long it takes and what the gate says. Writes nothing.

    With --items and a cluster instead of a gallery: time, money, memory, disk, network, the
    bottleneck, and where the design breaks first.
    """
    cluster = {
        "workers": workers,
        "gpus": gpus,
        "images_per_second": images_per_second,
        "price_per_worker_hour": price_per_worker_hour,
        "server_cores": server_cores,
        "machine_gb": machine_gb,
        "gbit": gbit,
    }
    given = {name: value for name, value in cluster.items() if value is not None}
    if items is not None:
        _plan_scale(
            location, to, encoder, items, given, dim=dim, kb=image_kb, costs=costs, as_json=as_json
        )
        return
    for name, value in {**given, "dim": dim, "image_kb": image_kb, "costs": costs}.items():
        if value is not None:
            raise ConfigError(f"--{name.replace('_', '-')} belongs to a plan for --items, say 1e9")
    if location is None:
        raise ConfigError("which gallery? Name one, or plan for --items 1e9 --workers 64")
    embed = None if encoder is None else encoder_named(encoder)[1]
    with opened(location) as upgrade:
        made = upgrade.plan(
            upgrade.gallery,
            to=target_from(to, encoder),
            mode=mode,
            bridge=bridge,
            order=order,
            calibrate=calibrate,
            sample=sample_from(upgrade.gallery, to, encoder, count=sample),
            embed=embed,
        )
    if as_json:
        print_json(made.to_dict())
    else:
        print_plan(made)


def _plan_scale(
    location: str | None,
    to: Path | None,
    encoder: str | None,
    items: int,
    given: dict[str, float | int],
    *,
    dim: int | None,
    kb: float | None,
    costs: Path | None,
    as_json: bool,
) -> None:
    """Options first, then what the gallery tells, then the defaults."""
    from midspan.upgrade.scale import Cluster, scale_plan
    from midspan.upgrade.unit_costs import SHIPPED, read_costs

    found = None if location is None else _told_by(location, to, encoder)
    if location is None and (to or encoder):
        raise ConfigError("--to and --encoder measure on a gallery's own items: name the gallery")
    if found is not None:
        dim, kb = dim or found.dim, kb or found.image_kb
        if found.images_per_second is not None:
            given.setdefault("images_per_second", found.images_per_second)
    made = scale_plan(
        items=items,
        dim=dim or DIM,
        image_kb=kb or IMAGE_KB,
        cluster=Cluster(**{"workers": 1, **given}),  # type: ignore[arg-type]
        costs=read_costs(costs or SHIPPED),
    )
    if found is not None and found.store is not None:
        mine = tuple(one for one in made.stores if one.store == found.store)
        made = dataclasses.replace(made, stores=mine)
    if as_json:
        print_json(made.to_dict())
    else:
        print_scale_plan(made)


def _told_by(location: str, to: Path | None, encoder: str | None) -> Sample:
    from midspan.upgrade.scale_sample import ask_gallery
    from midspan.upgrade.start import space_of

    with opened(location) as upgrade:
        space = space_of(target_from(to, encoder)) if to or encoder else None
        embed = None if encoder is None else encoder_named(encoder)[1]
        return ask_gallery(upgrade.gallery, space=space, embed=embed)
