"""The generated parts of docs/scale.md: what one item costs, what the planner prints, how it grows.

    python -m benchmarks.scale_page            # rewrites them from the measured files

Each part stands between `<!-- name -->` and `<!-- end of name -->`. A test compares the page with
what this would write.
"""

from __future__ import annotations

import csv
import io
import os
import re
from contextlib import redirect_stdout
from pathlib import Path

from midspan.cli.upgrade_tables import print_scale_plan
from midspan.upgrade.scale import Cluster, scale_plan
from midspan.upgrade.unit_costs import SHIPPED, read_costs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scale.md"
SCALING = ROOT / "benchmarks" / "results" / "scaling.csv"
NAMES = {
    "decode_seconds_per_kb": "decode a JPEG, one core",
    "embed_seconds": "embed an image (efficientnet-lite0, 224 pixels), one core",
    "start_seconds": "list an item as work (`upgrade start`)",
    "order_seconds": "put an item in order (uncertainty)",
    "write_seconds": "claim an item and write its new vector",
    "index_seconds": "bring a vector into the search index",
    "search_seconds": "search, ten results, median",
    "item_bytes": "disk of an item without vectors",
    "vector_bytes": "disk of a vector beside its 4 · dim",
    "index_bytes": "memory of a vector's index beside its numbers",
}
STORES = ("embedded", "pgvector", "milvus")


def parts() -> dict[str, str]:
    return {"costs": costs_table(), "plan": plan_block(), "growth": growth_table()}


def costs_table() -> str:
    with SHIPPED.open(newline="", encoding="utf-8") as file:
        rows = {(row["store"], row["name"]): row for row in csv.DictReader(file)}
    lines = [f"| one item | {' | '.join(STORES)} |", "|---" * (1 + len(STORES)) + "|"]
    for name, words in NAMES.items():
        if ("", name) in rows:
            continue
        cells = [shown(rows.get((store, name))) for store in STORES]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    sizes = ", ".join(
        f"{store} {int(rows[store, 'write_seconds']['items']):,}"
        for store in STORES
        if (store, "write_seconds") in rows
    )
    common = "; ".join(
        f"{NAMES[name]}: {shown(row)}" for (store, name), row in rows.items() if not store
    )
    loads = [
        float(row["machine"].split("load ")[1]) for row in rows.values() if "load" in row["machine"]
    ]
    load = f" Load of the machine meanwhile: up to {max(loads):.0f} on two cores." if loads else ""
    return "\n".join([f"{common}.", "", *lines, "", f"Items in the galleries: {sizes}.{load}"])


def shown(row: dict[str, str] | None) -> str:
    if row is None:
        return "–"
    value = float(row["value"])
    if not row["unit"].startswith("s"):
        return f"{value:,.0f} B"
    per = "/kB" if row["unit"] == "s/kB" else ""
    return f"{1e3 * value:.3g} ms{per}" if value >= 1e-3 else f"{1e6 * value:.3g} µs{per}"


def plan_block() -> str:
    made = scale_plan(
        items=10**9, dim=512, image_kb=100.0, cluster=Cluster(workers=64), costs=read_costs()
    )
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"  # of the terminal
    try:
        with redirect_stdout(io.StringIO()) as printed:
            print_scale_plan(made)
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    return "\n".join(["```", "$ midspan upgrade plan --items 1e9 --workers 64", *lines, "```"])


def growth_table() -> str:
    """Of the clock, and of memory; processor seconds are in the file."""
    if not SCALING.exists():
        return "Not measured yet: run `benchmarks.scaling`, then `benchmarks.scale_page`."
    with SCALING.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["unit"] != "cpu s"]
    sizes = [name for name in rows[0] if "e+" in name]
    heads = [f"10^{int(size[-2:])}" for size in sizes]
    lines = [
        f"| step | {' | '.join(heads)} | exponent | wanted | verdict |",
        "|---" * (4 + len(sizes)) + "|",
    ]
    for row in rows:
        unit = row["unit"].split(",")[0]
        what = row["what"] + (", growth after a tenth" if "," in row["unit"] else "")
        cells = [f"{float(row[size]):.3g} {unit}" if row[size] else "–" for size in sizes]
        ends = [row["exponent"] or "–", row["wanted"].replace("<=", "≤") or "–", row["verdict"]]
        lines.append(f"| {what} | {' | '.join([*cells, *ends])} |")
    return "\n".join(lines)


def rewritten(page: str) -> str:
    for name, text in parts().items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise SystemExit(f"{PAGE} has no {begin} … {end}")
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        block = f"{begin}\n{text}\n{end}"
        page = re.sub(pattern, lambda _, block=block: block, page, flags=re.DOTALL)  # type: ignore[misc]
    return page


def main() -> None:
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"→ {PAGE}")


if __name__ == "__main__":
    main()
