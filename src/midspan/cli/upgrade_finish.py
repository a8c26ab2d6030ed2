"""`midspan upgrade finish | forget`: the end of an upgrade, and of the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from midspan.cli.output import JSON_OPTION, percent, print_json
from midspan.cli.upgrade_options import LOCATION, OVERRIDE
from midspan.cli.upgrade_sources import opened

if TYPE_CHECKING:
    from midspan.gallery import Failure, Gallery

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
PAGE = 1000  # items deleted in one transaction


def seconds(text: str) -> float:
    """7d, 12h, 30m, 45s."""
    unit = UNITS.get(text[-1:])
    try:
        value = float(text[:-1]) * unit if unit is not None else float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}; expected a time such as 7d, 12h or 0") from error
    if not 0 <= value < 1e9 or (unit is None and value):
        raise typer.BadParameter(f"{text!r}; expected a time such as 7d, 12h or 0")
    return value


def finish(
    location: Annotated[str, LOCATION],
    keep_old: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="TIME",
            help="Keep the old vectors for so long (7d, 12h); default: until midspan upgrade "
            "forget. 0: drop them at once.",
        ),
    ] = None,
    override: Annotated[str | None, OVERRIDE] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also while items answer with a mapped vector, or an index is not built; never "
            "where an item would be left without a vector.",
        ),
    ] = False,
    hand_over: Annotated[
        bool,
        typer.Option(
            "--hand-over",
            help="Of an adopted table: its own column then holds the new vectors "
            "(midspan gallery hand-over).",
        ),
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """The new vectors alone answer. The old ones are kept, so that a rollback stays possible.

    Requires a PASS of the gate on the gallery as it is now: if there is none, the gate runs with
    the gallery's own items. --override "reason" finishes without.
    """
    with opened(location) as upgrade:
        done = upgrade.finish(force=force, override=override, keep_old=keep_old)
        if hand_over:
            from midspan.gallery.adoption.postgres_handover import hand_over_table

            hand_over_table(upgrade.gallery, show=True)
        space = upgrade.gallery.space
        dropped = upgrade.forget().dropped if keep_old == 0 else 0
    if as_json:
        print_json({"location": location, **asdict(done), "dropped": dropped})
        return
    left = f"; {done.left:,} items are left to embed" if done.left else ""
    print(f"{location} is in {space}{left}")
    if done.traffic < 1:
        print(
            f"the new way had answered {percent(done.traffic)} % of the traffic until now; from "
            "the next query on it answers all"
        )
    if dropped:
        print(f"{dropped:,} old vectors dropped")
        return
    until = "midspan upgrade forget"
    if done.keep_until is not None:
        moment = datetime.fromtimestamp(done.keep_until).astimezone()
        until = f"{moment.isoformat(sep=' ', timespec='minutes')}"
    print(f"{done.kept:,} old vectors are kept until {until}: midspan upgrade rollback leads back")


def forget(
    location: Annotated[str, LOCATION],
    due: Annotated[
        bool, typer.Option("--due", help="Only if the time of finish --keep-old is over.")
    ] = False,
    as_json: bool = JSON_OPTION,
) -> None:
    """Drop the old vectors of a finished upgrade, for good, and return their disk."""
    from midspan.upgrade.finish import forget_if_due

    with opened(location) as upgrade:
        done = forget_if_due(upgrade.gallery) if due else upgrade.forget()
    dropped = 0 if done is None else done.dropped
    if as_json:
        print_json({"location": location, "dropped": dropped})
        return
    print(f"{dropped:,} old vectors dropped" if done is not None else "nothing is due")


def delete_failed(gallery: Gallery, failed: Sequence[Failure]) -> int:
    """Items that cannot be embedded would keep an upgrade from its end."""
    from midspan.gallery import AuditEvent

    ids = [failure.id for failure in failed]
    parts = range(0, len(ids), PAGE)
    count = sum(gallery.delete(ids[start : start + PAGE]) for start in parts)
    if count:
        details = {"count": count, "first": ids[0]}
        event = AuditEvent(who=gallery.who, what="upgrade failures deleted", details=details)
        gallery.record(event)
    return count
