"""`midspan upgrade plan | start | run | status | failures | audit | pause | resume | gate | …`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from midspan.cli.exits import exit_with
from midspan.cli.output import JSON_OPTION, print_gate, print_json, print_table
from midspan.cli.spaces import SPACE, SpaceNames
from midspan.cli.upgrade_criterion import reason_to_start
from midspan.cli.upgrade_finish import delete_failed, finish, forget
from midspan.cli.upgrade_options import (
    BRIDGE,
    ENCODER,
    GROUP,
    LOCATION,
    MAX_FLIPS,
    MIN_RETENTION,
    MODE,
    ORDER,
    OVERRIDE,
    QUERIES,
    SAMPLE,
    SHADOW_NEW,
    SHADOW_OLD,
    TO,
    TRAFFIC,
    Mode,
    share,
)
from midspan.cli.upgrade_plan import plan
from midspan.cli.upgrade_run import run
from midspan.cli.upgrade_sources import (
    check_request,
    check_uris,
    encoder_named,
    opened,
    shadow_from,
    target_from,
)
from midspan.cli.upgrade_tables import print_audit, print_status
from midspan.cli.verbs import Verbs
from midspan.errors import ConfigError

app = typer.Typer(
    cls=Verbs,
    help="Change a gallery over to another encoder while it is searched.",
    no_args_is_help=True,
)

app.command("plan")(plan)


@app.command("start")
def start(
    location: Annotated[str, LOCATION],
    to: Annotated[Path | None, TO] = None,
    encoder: Annotated[str | None, ENCODER] = None,
    mode: Annotated[Mode, MODE] = "direct",
    bridge: Annotated[Path | None, BRIDGE] = None,
    order: Annotated[str | None, ORDER] = None,
    sample: Annotated[int, SAMPLE] = 300,
    traffic: Annotated[str, TRAFFIC] = "100%",
    space: Annotated[list[str] | None, SPACE] = None,
    override: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Start although the encoder's own test says FAIL; the reason is recorded.",
        ),
    ] = None,
    rollback: Annotated[
        bool,
        typer.Option(
            help="Promise a way back: items without an old vector are refused. Without the promise "
            "a rollback loses what came without one."
        ),
    ] = True,
    as_json: bool = JSON_OPTION,
) -> None:
    """From the next query on the new encoder answers. No image is read but those of the sample.

    If the test at the end of its training found that its queries search the old gallery worse,
    --override must say why to start nevertheless; a terminal asks for the reason (exit code 1
    without one).
    """
    answered = share(traffic)
    with opened(location) as upgrade:
        check_request(upgrade.gallery, mode=mode, bridge=bridge, order=order)
        if encoder is not None and to is None:
            check_uris(upgrade.gallery)
        target = target_from(to, encoder, SpaceNames.of(space, "to"))
        if mode == "direct":
            override = reason_to_start(upgrade.gallery, target, override)
        upgrade.start(
            upgrade.gallery,
            to=target,
            mode=mode,
            bridge=bridge,
            order=order,
            embed=None if to is not None or encoder is None else encoder_named(encoder)[1],
            sample_size=sample,
            traffic=answered,
            rollback=rollback,
            override=override,
            show=True,
        )
        print_status(upgrade.status(), as_json=as_json)


@app.command("traffic")
def traffic(
    location: Annotated[str, LOCATION],
    answered: Annotated[str, typer.Argument(metavar="SHARE", help="5%, 0.05; 0: shadow.")],
    as_json: bool = JSON_OPTION,
) -> None:
    """The share of the queries that the new way answers, from the next query on."""
    with opened(location) as upgrade:
        upgrade.set_traffic(share(answered))
        print_status(upgrade.status(), as_json=as_json)


@app.command("reorder")
def reorder(
    location: Annotated[str, LOCATION],
    order: Annotated[
        str,
        typer.Argument(metavar="ORDER", help="uncertainty, disagreement, traffic, newest, random."),
    ],
    as_json: bool = JSON_OPTION,
) -> None:
    """Another order for the items that still wait: which get their new vectors first."""
    with opened(location) as upgrade:
        upgrade.reorder(order, show=True)
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
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete these items from the gallery, for good.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Items that could not be embedded, with reasons."""
    if retry and delete:
        raise ConfigError("--retry and --delete exclude each other")
    with opened(location) as upgrade:
        listed = upgrade.gallery.work.failures(after="", limit=100_000)
        retried = upgrade.retry() if retry else 0
        deleted = delete_failed(upgrade.gallery, listed) if delete else 0
    if as_json:
        counts = {"retried": retried, "deleted": deleted}
        print_json({"failures": [asdict(failure) for failure in listed], **counts})
        return
    rows = [[one.id, one.reason, str(one.attempts), one.uri or "–"] for one in listed]
    print_table(f"{len(listed)} failures", ["item", "reason", "tries", "image"], rows)
    if retry:
        print(f"{retried} are back on the work list")
    if delete:
        print(f"{deleted} items were deleted")


@app.command("audit")
def audit(
    location: Annotated[str, LOCATION],
    limit: Annotated[int, typer.Option(min=1, help="So many lines, the newest first.")] = 20,
    as_json: bool = JSON_OPTION,
) -> None:
    """Who did what and when: the gallery's audit log."""
    with opened(location) as upgrade:
        entries = upgrade.gallery.audit_log(limit=limit)
    if as_json:
        print_json({"entries": [asdict(entry) for entry in entries]})
    else:
        print_audit(entries)


@app.command("pause")
def pause(
    location: Annotated[str, LOCATION],
    reason: Annotated[str | None, typer.Option(help="For those who look at the status.")] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Stop the backfill in every process, within a batch. Searches continue."""
    with opened(location) as upgrade:
        upgrade.pause(reason=reason)
        print_status(upgrade.status(), as_json=as_json)


@app.command("resume")
def resume(
    location: Annotated[str, LOCATION],
    override: Annotated[str | None, OVERRIDE] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Allow the backfill again; then start `upgrade run`. After a FAIL, --override says why."""
    with opened(location) as upgrade:
        upgrade.resume(override=override)
        print_status(upgrade.status(), as_json=as_json)


@app.command("gate")
def gate(
    location: Annotated[str, LOCATION],
    shadow_old: Annotated[Path | None, SHADOW_OLD] = None,
    shadow_new: Annotated[Path | None, SHADOW_NEW] = None,
    queries: Annotated[Path | None, QUERIES] = None,
    group: Annotated[str | None, GROUP] = None,
    max_negative_flips: Annotated[float | None, MAX_FLIPS] = None,
    min_retention: Annotated[float, MIN_RETENTION] = 0.98,
    space: Annotated[list[str] | None, SPACE] = None,
    as_json: bool = JSON_OPTION,
) -> None:
    """Ask the old service and today's the same queries. A FAIL pauses.

    The queries are those of two files, or else the items of the sample that `start` kept. What is
    right is said by clicks (--queries), or by labels, or else by what both encoders agree
    on. The interval decides: INCONCLUSIVE (exit code 3) says how many more queries are needed.
    """
    from midspan.upgrade import judged_by, own_gate, shadow_gate
    from midspan.upgrade.own_queries import GateSettings

    shadow = shadow_from(
        shadow_old,
        shadow_new,
        SpaceNames.of(space, "shadow-old", "shadow-new"),
        max_negative_flips=max_negative_flips,
        min_retention=min_retention,
        queries=queries,
        group=group,
    )
    own = GateSettings(min_retention, max_negative_flips, group)
    with opened(location) as upgrade:
        if shadow is not None:
            result = shadow_gate(upgrade.gallery, shadow)
        else:
            result = own_gate(upgrade.gallery, own)
        judged_by(upgrade.gallery, result)
    if as_json:
        print_json(result.to_dict())
    else:
        print_gate(result)
    exit_with(result.verdict)


app.command("finish")(finish)
app.command("forget")(forget)


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
            f"with the old encoder: midspan upgrade run {location} --encoder OLD, or give their "
            f"vectors: midspan upgrade run {location} --vectors OLD.npz"
        )
