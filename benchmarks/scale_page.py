"""The generated parts of docs/scale.md: what one item costs, and a billion; how it grows.

    python -m benchmarks.scale_page            # rewrites them from the measured files

Each part stands between `<!-- name -->` and `<!-- end of name -->`. A test compares the page with
what this would write.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scale.md"
COSTS = ROOT / "benchmarks" / "results" / "unit_costs.csv"
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
ITEMS, DIM, IMAGE_KB, WORKERS = 10**9, 512, 100, 64  # of the example on the page


def parts() -> dict[str, str]:
    return {"costs": costs_table(), "billion": billion_table(), "growth": growth_table()}


def costs_table() -> str:
    rows = cost_rows()
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


def billion_table() -> str:
    """Cost of one item × items; embedding ÷ workers, the rest by one process on one core."""
    rows = cost_rows()
    each = {key: float(row["value"]) for key, row in rows.items()}
    embed = each["", "decode_seconds_per_kb"] * IMAGE_KB + each["", "embed_seconds"]
    steps = ("start_seconds", "order_seconds", "write_seconds", "index_seconds")
    lines = [f"| {ITEMS:,} items | {' | '.join(STORES)} |", "|---" * (1 + len(STORES)) + "|"]
    for name in steps:
        cells = [days(each.get((store, name))) for store in STORES]
        lines.append(f"| {NAMES[name]} | {' | '.join(cells)} |")
    disk, memory = [], []
    for store in STORES:
        item, vector, index = (
            each[store, name] for name in ("item_bytes", "vector_bytes", "index_bytes")
        )
        disk.append(f"{ITEMS * (item + 2 * (4 * DIM + vector)) / 1e12:.2f} TB")
        memory.append(f"{ITEMS * (4 * DIM + index) / 1e12:.2f} TB")
    lines.append(f"| disk with both vectors, before `finish` | {' | '.join(disk)} |")
    lines.append(f"| memory of one space's search, float32 | {' | '.join(memory)} |")
    first = (
        f"Decode and embed, {WORKERS} workers of one core: {days(embed / WORKERS)}. Read "
        f"{ITEMS * IMAGE_KB / 1e9:,.0f} TB of images, write {ITEMS * 4 * DIM / 1e12:.2f} TB of "
        "vectors."
    )
    return "\n".join([first, "", *lines])


def days(each: float | None) -> str:
    if each is None:
        return "–"
    hours = ITEMS * each / 3600
    return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} h"


def cost_rows() -> dict[tuple[str, str], dict[str, str]]:
    with COSTS.open(newline="", encoding="utf-8") as file:
        return {(row["store"], row["name"]): row for row in csv.DictReader(file)}


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
