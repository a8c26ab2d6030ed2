"""`midspan upgrade plan | start | run | status | failures | trail | pause | resume | gate | …`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from midspan.cli.output import JSON_OPTION, print_gate, print_json, print_table
from midspan.cli.upgrade_options import (
    BRIDGE,
    CALIBRATE,
    ENCODER,
    LOCATION,
    MAX_FLIPS,
    MIN_RETENTION,
    MODE,
    ORDER,
    SAMPLE,
    SHADOW_NEW,
    SHADOW_OLD,
    TO,
    Mode,
)
from midspan.cli.upgrade_plan import plan
from midspan.cli.upgrade_run import run
from midspan.cli.upgrade_sources import (
    opened,
    sample_from,
    shadow_from,
    target_from,
)
from midspan.cli.upgrade_tables import print_status, print_trail

app = typer.Typer(
    help="Change a gallery over to another encoder while it is searched.", no_args_is_help=True
)

app.command("plan")(plan)


@app.command("start")
def start(
    location: Annotated[str, LOCATION],
    to: Annotated[Path | None, TO] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    mode: Annotated[Mode, MODE] = "direct",
    bridge: Annotated[Path | None, BRIDGE] = None,
    order: Annotated[str, ORDER] = "uncertainty",
    calibrate: Annotated[bool | None, CALIBRATE] = None,
    sample: Annotated[int, SAMPLE] = 300,
    as_json: bool = JSON_OPTION,
) -> None:
    """From the next query on the new encoder answers. No image is read but those of the sample."""
    with opened(location) as upgrade:
        upgrade.start(
            upgrade.gallery,
            to=target_from(to, encoder),
            mode=mode,
            bridge=bridge,
            order=order,
            calibrate=calibrate,
            sample=sample_from(upgrade.gallery, to, encoder, count=sample),
            show=True,
        )
        print_status(upgrade.status(), as_json=as_json)


app.command("run")(run)


@app.command("status")
def status(location: Annotated[str, LOCATION], as_json: bool = JSON_OPTION) -> None:
    """How far it is, how fast it goes, how long it will take."""
    with opened(location) as upgrade:
        print_status(upgrade.status(), as_json=as_json)


@app.command("failures")
def failures(
    location: Annotated[str, LOCATION],
    retry: Annotated[
        bool, typer.Option("--retry", help="Put them back on the work list, for the next run.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Items that could not be embedded, with reasons."""
    with opened(location) as upgrade:
        found = upgrade.gallery.store.failures(after="", limit=100_000)
        retried = upgrade.retry() if retry else 0
    if as_json:
        print_json({"failures": [asdict(failure) for failure in found], "retried": retried})
        return
    rows = [[one.id, one.reason, str(one.attempts), one.uri or "–"] for one in found]
    print_table(f"{len(found)} failures", ["item", "reason", "tries", "image"], rows)
    if retry:
        print(f"{retried} are back on the work list")


@app.command("trail")
def trail(
    location: Annotated[str, LOCATION],
    limit: Annotated[int, typer.Option(min=1, help="So many lines, the newest first.")] = 20,
    as_json: bool = JSON_OPTION,
) -> None:
    """Who did what and when: the gallery's own record."""
    with opened(location) as upgrade:
        entries = upgrade.gallery.trail(limit=limit)
    if as_json:
        print_json({"trail": [asdict(entry) for entry in entries]})
    else:
        print_trail(entries)


@app.command("pause")
def pause(
    location: Annotated[str, LOCATION],
    reason: Annotated[str | None, typer.Option(help="For those who look at the status.")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Stop the backfill in every process, within a batch. Searches go on."""
    with opened(location) as upgrade:
        upgrade.pause(reason=reason)
        print_status(upgrade.status(), as_json=as_json)


@app.command("resume")
def resume(location: Annotated[str, LOCATION], as_json: bool = JSON_OPTION) -> None:
    """Allow the backfill again; then start `upgrade run`."""
    with opened(location) as upgrade:
        upgrade.resume()
        print_status(upgrade.status(), as_json=as_json)


@app.command("gate")
def gate(
    location: Annotated[str, LOCATION],
    shadow_old: Annotated[Path, SHADOW_OLD],
    shadow_new: Annotated[Path, SHADOW_NEW],
    max_negative_flips: Annotated[float, MAX_FLIPS] = 0.01,
    min_retention: Annotated[float, MIN_RETENTION] = 0.95,
    as_json: bool = JSON_OPTION,
) -> None:
    """Ask the old service and today's the same queries. FAIL pauses and is exit code 1."""
    from midspan.upgrade import judged_by, shadow_gate

    shadow = shadow_from(
        shadow_old, shadow_new, max_negative_flips=max_negative_flips, min_retention=min_retention
    )
    assert shadow is not None
    with opened(location) as upgrade:
        result = shadow_gate(upgrade.gallery, shadow)
        judged_by(upgrade.gallery, result)
    if as_json:
        print_json(result.to_dict())
    else:
        print_gate(result)
    if result.verdict == "FAIL":
        raise typer.Exit(1)


@app.command("finish")
def finish(
    location: Annotated[str, LOCATION],
    force: Annotated[
        bool, typer.Option("--force", help="Also with items left, or after a failed gate.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Drop the old vectors, for good."""
    with opened(location) as upgrade:
        done, space = upgrade.finish(force=force), upgrade.gallery.space
    if as_json:
        print_json({"location": location, **asdict(done)})
        return
    left = f"; {done.left:,} items are left to embed" if done.left else ""
    print(f"{location} is in {space}; {done.dropped:,} old vectors dropped{left}")


@app.command("rollback")
def rollback(
    location: Annotated[str, LOCATION],
    drop: Annotated[
        bool, typer.Option("--drop", help="Also remove the new vectors that were made.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """The old vectors answer again, from the next query on."""
    with opened(location) as upgrade:
        done, space = upgrade.rollback(drop=drop), upgrade.gallery.space
    if as_json:
        print_json({"location": location, **asdict(done)})
        return
    print(f"{location} is back in {space}")
    if done.without:
        print(
            f"{done.without:,} items came without an old vector and are not found now; embed them "
            f"with the old encoder: midspan upgrade run {location} --encoder OLD"
        )
