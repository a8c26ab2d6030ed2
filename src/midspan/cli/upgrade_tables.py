"""What `midspan upgrade` prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from midspan.cli.indexes import index_words
from midspan.cli.output import duration, percent, print_json, print_table
from midspan.evidence import Evidence

if TYPE_CHECKING:
    from midspan.gallery import AuditEvent
    from midspan.upgrade import Plan, Status


def print_status(status: Status, *, as_json: bool) -> None:
    if as_json:
        print_json(status.to_dict())
        return
    if status.phase == "none":
        print(f"{status.location}: {status.none_words()}")
        return
    rows = [
        ["phase", phase_words(status)],
        ["mode, order", f"{status.mode or '–'}, {status.order or '–'}"],
        ["from, to", f"{status.from_space or '–'} → {status.to_space or '–'}"],
        ["old + new + failed = all", f"{status.old:,} + {status.new:,} + {status.failed:,}"],
        ["", f"= {status.all:,} ({percent(status.share)} % new)"],
        [
            "rate",
            "no worker has reported lately"
            if status.rate is None
            else f"{status.rate:,.1f} items/s",
        ],
        ["time left", duration(status.seconds_left)],
        ["gate", gate_words(status)],
        *gate_evidence(status),
        *way_back(status),
    ]
    rows += [[f"index of {name}", index_words(index)] for name, index in status.indexes.items()]
    for arm, name in (("old", "searches as before"), ("new", "searches the new way")):
        if (times := status.arms.get(arm)) is not None:
            spent = f"p50 {times.p50_ms:,.1f} ms, p99 {times.p99_ms:,.1f} ms"
            rows.append([name, f"{times.searches:,}, {spent}"])
    if (seen := status.compared) is not None:
        shared = f"{percent(seen.overlap)} % of the hits"
        first = f"another first hit for {percent(seen.first_changed)} %"
        rows.append(["compared in the background", f"{seen.queries:,}: {shared}, {first}"])
        spent = f"p50 {seen.p50_ms:,.1f} ms, p99 {seen.p99_ms:,.1f} ms"
        rows.append(
            ["", f"{spent} the new way" + f"; {seen.dropped:,} left out" * bool(seen.dropped)]
        )
    if status.traffic is not None:
        shadow = " (shadow)" if not status.traffic else ""
        rows.append(["traffic answered the new way", f"{percent(status.traffic)} %{shadow}"])
        rows.append(["scores of old and new vectors", score_words(status.standardised)])
    print_table(f"{status.location}: upgrade", ["", ""], rows)


def phase_words(status: Status) -> str:
    words = status.phase + (f" ({status.reason})" if status.reason else "")
    if status.phase != "running" or status.traffic in (None, 1):
        return words
    return f"{words}, {'canary' if status.traffic else 'shadow'}"


def gate_words(status: Status) -> str:
    if status.gate is None:
        return "not asked"
    if status.override is None:
        return status.gate
    return f"{status.gate}; overridden by {status.override['who']}: {status.override['reason']}"


def gate_evidence(status: Status) -> list[list[str]]:
    """What the last verdict rests on: both ways asked the same queries."""
    seen = status.evidence
    if seen is None or seen["before"] is None:
        return []
    values = f"as before {percent(seen['before'])}, the new way {percent(seen['after'])}"
    asked = f"{seen['queries']:,} queries at {percent(seen['share'])} % new"
    limits = [f"{name} {limit:g}" for name, limit in seen.get("limits", {}).items()]
    rows = [[f"  {seen['metric']}, %", values], ["", asked]]
    return [*rows, ["  limits", ", ".join(limits)]] if limits else rows


def way_back(status: Status) -> list[list[str]]:
    if status.would_vanish is None:
        return []
    rows = [["would vanish on rollback", f"{status.would_vanish:,}"]]
    if status.phase == "finished":
        until = "midspan upgrade forget"
        if status.keep_until is not None:
            moment = datetime.fromtimestamp(status.keep_until).astimezone()
            until = moment.isoformat(sep=" ", timespec="minutes")
        rows.append(["old vectors", f"kept until {until}"])
    return rows


def print_plan(plan: Plan) -> None:
    rows = [
        ["from", plan.from_space],
        ["to", plan.to_space],
        ["mode, order", f"{plan.mode}, {plan.order}"],
        ["items", f"{plan.items:,}, {plan.to_embed:,} to embed"],
        ["time", f"{duration(plan.seconds)} on this machine" if plan.seconds is not None else "–"],
        ["disk until finished", f"{plan.disk_bytes / 1e6:,.1f} MB"],
        ["searches, encoders for a query", f"{plan.searches_per_query}, {plan.encoders_per_query}"],
    ]
    if plan.compatibility is not None:
        evidence = Evidence.from_dict(plan.compatibility, source="plan")
        rows.append(["trained compatible", str(evidence)])
    if plan.gate is not None:
        rows.append(["gate at the start", f"{plan.gate['verdict']} on {plan.sample:,} items"])
        rows += [
            [f"  {check['name']}", f"{percent(check['value'])} %, limit {percent(check['limit'])}"]
            for check in plan.gate["checks"]
        ]
    rows.append(["scores of old and new vectors", score_words(plan.standardised)])
    if plan.curve is not None:
        shown = ", ".join(percent(value) for value in plan.curve["values"][::5])
        rows.append([f"expected {plan.curve['metric']}, %", f"{shown} at 0, 50, 100 %"])
    print_table(f"{plan.location}: plan, nothing is changed", ["", ""], rows)
    for note in plan.notes:
        print(f"· {note}")


def print_audit(entries: Sequence[AuditEvent]) -> None:
    """A line each, as in a log."""
    for entry in entries:
        when = datetime.fromtimestamp(entry.when).astimezone().isoformat(timespec="seconds")
        known = [(name, value) for name, value in entry.details.items() if value is not None]
        details = ", ".join(f"{name} {value}" for name, value in known)
        print(f"{when} {entry.who} {entry.what}" + (f": {details}" if details else ""))


def score_words(standardised: bool) -> str:
    return "standardised over the sample" if standardised else "merged as they are"
