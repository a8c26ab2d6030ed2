"""What `midspan upgrade` prints for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from midspan.cli.output import duration, percent, print_json, print_table

if TYPE_CHECKING:
    from midspan.gallery import Entry
    from midspan.upgrade import Plan, Status


def print_status(found: Status, *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_dict())
        return
    rows = [
        ["phase", found.phase + (f" ({found.reason})" if found.reason else "")],
        ["mode, order", f"{found.mode or '–'}, {found.order or '–'}"],
        ["from, to", f"{found.from_space or '–'} → {found.to_space or '–'}"],
        ["old + new + failed = all", f"{found.old:,} + {found.new:,} + {found.failed:,}"],
        ["", f"= {found.all:,} ({percent(found.share)} % new)"],
        ["rate", "nobody works" if found.rate is None else f"{found.rate:,.1f} items/s"],
        ["time left", duration(found.seconds_left)],
        ["gate", found.gate or "not asked"],
    ]
    if found.mixing is not None:
        rows.append(["scores of old and new vectors", mixing_words(found.mixing)])
    print_table(f"{found.location}: upgrade", ["", ""], rows)


def print_plan(plan: Plan) -> None:
    rows = [
        ["from", plan.from_space],
        ["to", plan.to_space],
        ["mode, order", f"{plan.mode}, {plan.order}"],
        ["items", f"{plan.items:,}, {plan.to_embed:,} to embed"],
        ["time", f"{duration(plan.seconds)} on this machine" if plan.seconds is not None else "–"],
        ["disk until finished", f"{plan.disk_bytes / 1e6:,.1f} MB"],
        ["searches for a query", str(plan.searches_per_query)],
    ]
    if plan.gate is not None:
        rows.append(["gate at the start", f"{plan.gate['verdict']} on {plan.sample:,} items"])
        rows += [
            [f"  {check['name']}", f"{percent(check['value'])} %, limit {percent(check['limit'])}"]
            for check in plan.gate["checks"]
        ]
    if plan.mixing is not None:
        rows.append(["scores of old and new vectors", mixing_words(plan.mixing)])
    if plan.curve is not None:
        shown = ", ".join(percent(value) for value in plan.curve["values"][::5])
        rows.append([f"expected {plan.curve['metric']}, %", f"{shown} at 0, 50, 100 %"])
    print_table(f"{plan.location}: plan, nothing is written", ["", ""], rows)
    for note in plan.notes:
        print(f"· {note}")


def print_trail(entries: Sequence[Entry]) -> None:
    """A line each, as in a log."""
    for entry in entries:
        when = datetime.fromtimestamp(entry.when).astimezone().isoformat(timespec="seconds")
        details = ", ".join(f"{name} {value}" for name, value in entry.details.items())
        print(f"{when} {entry.who} {entry.what}" + (f": {details}" if details else ""))


def mixing_words(mixing: Mapping[str, Any]) -> str:
    """What was chosen, and by how much it was better on the sample."""
    words = {
        "plain": "as they are",
        "odds": "calibrated by labels",
        "neighbours": "calibrated by neighbours",
    }[mixing["chosen"]]
    quality = mixing["quality"]
    if len(quality) < 2:
        return words
    tried = ", ".join(f"{name} {percent(value)}" for name, value in quality.items())
    return f"{words} (mAP on held-out queries, %: {tried})"
