"""`midspan upgrade run`: the backfill, on this machine or on a Ray cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from midspan.cli import exits
from midspan.cli.indexes import build_indexes
from midspan.cli.output import JSON_OPTION, print_json, print_table
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
from midspan.cli.runtime import RUNTIME, RuntimeName
from midspan.cli.spaces import SPACE, SpaceNames
from midspan.cli.upgrade_options import (
    ENCODER,
    GROUP,
    LOCATION,
    MAX_FLIPS,
    MIN_RETENTION,
    QUERIES,
    SHADOW_NEW,
    SHADOW_OLD,
)
from midspan.cli.upgrade_sources import (
    check_uris,
    embed_from,
    opened,
    shadow_from,
    source_named,
    watched,
)
from midspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from midspan.gallery import Gallery
    from midspan.upgrade import GateResult, Reason, Report, Status
    from midspan.upgrade.cluster import ClusterReport, Make
    from midspan.upgrade.own_queries import GateSettings

SHOWN = 10  # reasons in the table


def run(
    location: Annotated[str, LOCATION],
    embeddings: Annotated[
        Path | None,
        typer.Option("--vectors", help="Vectors that exist already, found by id: .npz, .parquet."),
    ] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    runtime: Annotated[RuntimeName, RUNTIME] = "auto",
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many items.")] = None,
    max_rate: Annotated[float | None, typer.Option(help="Items a second at most.")] = None,
    max_latency: Annotated[
        float | None, typer.Option(help="Rest while searches take longer (99 of 100), in ms.")
    ] = None,
    full_speed: Annotated[
        bool, typer.Option("--full-speed", help="No rest for searches of other processes.")
    ] = False,
    batch: Annotated[
        int,
        typer.Option(
            "--batch-size", min=1, help="Items embedded and written at once, to begin with."
        ),
    ] = 64,
    shadow_old: Annotated[Path | None, SHADOW_OLD] = None,
    shadow_new: Annotated[Path | None, SHADOW_NEW] = None,
    queries: Annotated[Path | None, QUERIES] = None,
    group: Annotated[str | None, GROUP] = None,
    max_negative_flips: Annotated[float | None, MAX_FLIPS] = None,
    min_retention: Annotated[float, MIN_RETENTION] = 0.98,
    ray: Annotated[str | None, RAY] = None,
    workers: Annotated[int | None, WORKERS] = None,
    gpus_per_worker: Annotated[float | None, GPUS] = None,
    ship_images: Annotated[bool, SHIP] = False,
    space: Annotated[list[str] | None, SPACE] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """The backfill. Stop it at any time, start it again, run it in several processes at once.

    Items that failed are tried again when the vectors come from another source than before. The
    exit code is 1 if items failed, or if the upgrade is paused or ended. The gate is asked 20 times
    on the whole way, with shadow queries or else with the sample that `start` kept; a FAIL pauses
    the upgrade. With --ray the workers of a
    cluster embed, and this process claims and writes.
    """
    from midspan.upgrade import Settings, reasons, watch
    from midspan.upgrade.cluster import run_on_cluster
    from midspan.upgrade.own_queries import GateSettings

    cluster = workers_from(ray, workers, gpus_per_worker, ship_images=ship_images)
    make = None if cluster is None else _made_there(embeddings, encoder)
    spaces = SpaceNames.of(space, "vectors", "shadow-old", "shadow-new")
    shadow = shadow_from(
        shadow_old,
        shadow_new,
        spaces,
        max_negative_flips=max_negative_flips,
        min_retention=min_retention,
        queries=queries,
        group=group,
    )
    spread: ClusterReport | None = None
    embed = (
        None if cluster is not None else embed_from(embeddings, encoder, spaces, runtime=runtime)
    )
    with (
        opened(location) as upgrade,
        watched(upgrade.gallery, max_latency, full_speed=full_speed) as latency,
    ):
        retried = _retried(upgrade.gallery, embeddings, encoder, spaces)
        own = GateSettings(min_retention, max_negative_flips, group)
        check = _watched_by_sample(upgrade.gallery, own)
        if shadow is not None:
            check = watch(upgrade.gallery, shadow)
        # A search that comes in the middle of a batch waits for all of it; images that travel fill
        # the cluster's memory: keep them small.
        small = latency is not None or ship_images
        settings = Settings(batch=batch, growth=1) if small else Settings(batch=batch)
        if embed is not None:
            report = upgrade.run(
                embed,
                limit=limit,
                max_rate=max_rate,
                latency=latency,
                check=check,
                settings=settings,
                show=True,
            )
        else:
            assert cluster is not None
            assert make is not None
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
        if report.stopped == "done":
            build_indexes(upgrade.gallery)
        failures = reasons(upgrade.gallery) if report.failed else []
        status = upgrade.status()
        stopped = report.stopped in ("paused", "ended") or status.phase == "paused"
    _print(report, spread, failures, retried=retried, status=status, as_json=as_json)
    if report.failed or stopped:
        raise typer.Exit(exits.INCOMPLETE)


def _watched_by_sample(gallery: Gallery, own: GateSettings) -> Callable[[], GateResult] | None:
    """The gate along the way, where the upgrade has a sample of items to ask with."""
    from midspan.errors import EvaluationError
    from midspan.gallery.records import Record
    from midspan.upgrade import watch_own

    record = Record.of(gallery.state)
    if record is None or record.sample is None or record.phase != "running":
        return None
    try:
        return watch_own(gallery, own)
    except EvaluationError:  # too few of the sample's items are left
        return None


def _retried(
    gallery: Gallery, embeddings: Path | None, encoder: str | None, spaces: SpaceNames
) -> int:
    """Record the source of this run; how many items failed with another one and are tried again."""
    from midspan.upgrade import use_source

    if gallery.state.target is None:
        return 0  # nothing is to be done, which `run` says
    if encoder is not None:
        check_uris(gallery)
    return use_source(gallery, source_named(embeddings, encoder, spaces))


def _made_there(embeddings: Path | None, encoder: str | None) -> Make:
    if embeddings is not None or encoder is None:
        raise ConfigError(
            "--ray requires --encoder RUN, which the workers load; vectors that exist already "
            "need no workers: leave --ray out"
        )
    return carried(encoder)


def paused_words(status: Status) -> list[str]:
    """Why it stands still, and what to do."""
    shop, why = status.location, status.reason or "no reason was given"
    if status.gate != "FAIL":
        return [f"paused ({why}): midspan upgrade resume {shop}, then run again"]
    return [
        f"the gate says FAIL and paused the upgrade ({why})",
        f"look: midspan upgrade gate {shop}; back: midspan upgrade rollback {shop}; on: "
        f'midspan upgrade resume {shop} --override "reason"',
    ]


def _print(
    report: Report,
    spread: ClusterReport | None,
    failures: Sequence[Reason],
    *,
    retried: int,
    status: Status,
    as_json: bool,
) -> None:
    if as_json:
        document = {**asdict(report), "rate": report.rate, "seconds_left": report.seconds_left}
        document |= {"retried": retried, "reasons": [asdict(reason) for reason in failures]}
        document |= {"gate": status.gate, "paused": status.reason}
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
        f"{report.stopped}: {report.written:,} written, {report.given_up:,} failed in "
        f"{report.seconds:.1f} s ({report.rate:,.0f} items/s); old {report.old:,} + new "
        f"{report.new:,} + failed {report.failed:,} = {report.all:,}"
    )
    if status.phase == "paused":
        print("\n".join(paused_words(status)))
    if retried:
        print(f"{retried:,} items that had failed were tried again: the source is another one")
    if failures:
        rows = [[f"{one.items:,}", one.text, one.example] for one in failures[:SHOWN]]
        more = len(failures) - len(rows)
        note = f"and {more} more reasons: midspan upgrade failures" if more else ""
        print_table("items that failed", ["items", "reason", "example"], rows, note=note)
    if spread is not None:
        print(
            f"{spread.workers} workers on {spread.nodes} nodes; {spread.lost} were lost, and "
            f"{spread.sent_again:,} items were sent again"
        )
