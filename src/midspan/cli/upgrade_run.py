"""`midspan upgrade run`: the backfill, on this machine or on a Ray cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from midspan.cli.output import JSON_OPTION, print_json
from midspan.cli.ray_workers import (
    GPUS,
    RAY,
    SHIP,
    WORKERS,
    carried,
    pack_from,
    seen_here,
    workers_from,
)
from midspan.cli.upgrade_options import (
    ENCODER,
    LOCATION,
    MAX_FLIPS,
    MIN_RETENTION,
    SHADOW_NEW,
    SHADOW_OLD,
)
from midspan.cli.upgrade_sources import embed_from, opened, shadow_from, watched
from midspan.errors import ConfigError

if TYPE_CHECKING:
    from midspan.upgrade import Report
    from midspan.upgrade.cluster import ClusterReport, Make


def run(
    location: Annotated[str, LOCATION],
    embeddings: Annotated[
        Path | None, typer.Option(help="Vectors that exist already, found by id: .npz, .parquet.")
    ] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many items.")] = None,
    max_rate: Annotated[float | None, typer.Option(help="Items a second at most.")] = None,
    max_latency: Annotated[
        float | None, typer.Option(help="Rest while searches take longer (99 of 100), in ms.")
    ] = None,
    full_speed: Annotated[
        bool, typer.Option("--full-speed", help="No rest for searches of other processes.")
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Items embedded and written at once, to begin with.")
    ] = 64,
    shadow_old: Annotated[Path | None, SHADOW_OLD] = None,
    shadow_new: Annotated[Path | None, SHADOW_NEW] = None,
    max_negative_flips: Annotated[float, MAX_FLIPS] = 0.01,
    min_retention: Annotated[float, MIN_RETENTION] = 0.95,
    ray: Annotated[str | None, RAY] = None,
    workers: Annotated[int | None, WORKERS] = None,
    gpus_per_worker: Annotated[float | None, GPUS] = None,
    ship_images: Annotated[bool, SHIP] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """The backfill. Stop it at any time, start it again, run it in several processes at once.

    With shadow queries the gate is asked each 1,000 items; a FAIL pauses the upgrade. With --ray
    the workers of a cluster embed, and this process claims and writes.
    """
    from midspan.upgrade import Settings, watch
    from midspan.upgrade.cluster import run_on_cluster

    cluster = workers_from(ray, workers, gpus_per_worker, ship_images=ship_images)
    make = None if cluster is None else _made_there(embeddings, encoder)
    shadow = shadow_from(
        shadow_old, shadow_new, max_negative_flips=max_negative_flips, min_retention=min_retention
    )
    spread: ClusterReport | None = None
    with (
        opened(location) as upgrade,
        watched(upgrade.gallery, max_latency, full_speed=full_speed) as latency,
    ):
        check = None if shadow is None else watch(upgrade.gallery, shadow)
        # A search that comes in the middle of a batch waits for all of it; images that travel fill
        # the cluster's memory: keep them small.
        small = latency is not None or ship_images
        settings = Settings(batch=batch, growth=1) if small else Settings(batch=batch)
        if cluster is None or make is None:
            report = upgrade.run(
                embed_from(embeddings, encoder),
                limit=limit,
                max_rate=max_rate,
                latency=latency,
                check=check,
                settings=settings,
                show=True,
            )
        else:
            spread = run_on_cluster(
                upgrade.gallery,
                make,
                workers=cluster,
                pack=pack_from(ship_images=ship_images),
                seen_here=None if ship_images else seen_here,
                limit=limit,
                max_rate=max_rate,
                latency=latency,
                check=check,
                settings=settings,
                show=True,
            )
            report = spread.report
    _print(report, spread, as_json=as_json)


def _made_there(embeddings: Path | None, encoder: str | None) -> Make:
    if embeddings is not None or encoder is None:
        raise ConfigError(
            "--ray wants --encoder RUN, which the workers load; vectors that exist already need "
            "no workers: leave --ray out"
        )
    return carried(encoder)


def _print(report: Report, spread: ClusterReport | None, *, as_json: bool) -> None:
    if as_json:
        document = {**asdict(report), "rate": report.rate, "seconds_left": report.seconds_left}
        if spread is not None:
            document["cluster"] = {
                "workers": spread.workers,
                "nodes": spread.nodes,
                "lost": spread.lost,
                "sent_again": spread.sent_again,
            }
        print_json(document)
        return
    print(
        f"{report.stopped}: {report.written:,} written, {report.given_up:,} given up in "
        f"{report.seconds:.1f} s ({report.rate:,.0f} items/s); old {report.old:,} + new "
        f"{report.new:,} + failed {report.failed:,} = {report.all:,}"
    )
    if spread is not None:
        print(
            f"{spread.workers} workers on {spread.nodes} nodes; {spread.lost} were lost, and "
            f"{spread.sent_again:,} items were sent again"
        )
