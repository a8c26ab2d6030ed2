"""What `midspan upgrade` prints for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from midspan.cli.output import duration, percent, print_json, print_table

if TYPE_CHECKING:
    from midspan.gallery import Entry
    from midspan.upgrade import Plan, Status
    from midspan.upgrade.scale import ScalePlan, StorePlan


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


def print_scale_plan(plan: ScalePlan) -> None:
    cluster, rate = plan.cluster, plan.items / plan.embed_seconds
    rows = [
        ["images read", f"{size(plan.image_bytes)}, {duration(plan.read_seconds)}"],
        ["decoded", duration(plan.decode_seconds) if plan.decode_seconds else "with embedding"],
        ["embedded", f"{duration(plan.embed_seconds)}, {rate:,.0f} images/s"],
        ["new vectors written", size(plan.vector_bytes)],
        ["network of a worker", f"{plan.gbit_needed:.3g} of {cluster.gbit:g} Gbit/s"],
    ]
    gpus = f", {cluster.gpus} GPUs" if cluster.gpus else ""
    what = f"{plan.items:,} items, {plan.dim} dimensions, {plan.image_kb:g} kB an image"
    print(f"{what}; {cluster.workers:,} workers{gpus}")
    print_table("workers", ["", "all together"], rows)
    lines: list[tuple[str, Callable[[StorePlan], str]]] = [
        ("start: list the work", lambda one: duration(one.start_seconds)),
        ("order: one pass", lambda one: duration(one.order_seconds)),
        ("write vectors", lambda one: duration(one.write_seconds)),
        ("backfill, all at once", lambda one: duration(one.backfill_seconds)),
        ("build the index", lambda one: duration(one.index_seconds)),
        ("all", lambda one: ("" if one.complete else "> ") + duration(one.seconds)),
        ("bottleneck", lambda one: one.bottleneck),
        ("workers of use", lambda one: f"{one.useful_workers:,}"),
        ("money", lambda one: "–" if one.money is None else f"{one.money:,.0f}"),
        ("disk before finish", lambda one: size(one.disk_bytes)),
    ]
    lines += [
        (f"memory, {name}", lambda one, name=name: size(one.memory_bytes[name]))  # type: ignore[misc]
        for name in plan.stores[0].memory_bytes
    ]
    lines.append(
        (f"machines of {cluster.machine_gb:g} GB", lambda one: _or_none(one.machines["float32"]))
    )
    lines.append(("breaks first at", lambda one: _or_none(_first_limit(one))))
    table = [[label, *(show(one) for one in plan.stores)] for label, show in lines]
    print_table("by store", ["", *(one.store for one in plan.stores)], table)
    for one in plan.stores:
        for limit in one.limits:
            if limit.items < plan.items:
                print(f"· {one.store}, above {limit.items:,} items: {limit.what}; {limit.then}")
    print("· –: not measured, or not to be had; costs of one item: docs/scale.md")


def _first_limit(one: StorePlan) -> int | None:
    return one.limits[0].items if one.limits else None


def _or_none(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def size(count: float | None) -> str:
    """Bytes for people, in powers of a thousand, as disks and networks are sold."""
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} PB"


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
