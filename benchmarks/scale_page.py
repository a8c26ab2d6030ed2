"""The generated parts of docs/scale.md: what one item costs, and many; how it grows.

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
    "vector_bytes": "disk of a vector besides its 4 · dim",
    "index_bytes": "memory of a vector's index besides its numbers",
}
STORES = ("embedded", "pgvector", "milvus")
SIZES = (10**7, 10**8, 10**9)  # of the example on the page
DIM, IMAGE_KB, WORKERS = 512, 100, 64


def parts() -> dict[str, str]:
    return {"costs": costs_table(), "sizes": sizes_table(), "growth": growth_table()}


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


def sizes_table() -> str:
    """Cost of one item × items; embedding ÷ workers, the rest by one process on one core."""
    each = {key: float(row["value"]) for key, row in cost_rows().items()}
    embed = each["", "decode_seconds_per_kb"] * IMAGE_KB + each["", "embed_seconds"]
    heads = [f"10^{len(str(size)) - 1}" for size in SIZES]
    lines = [f"| items | | {' | '.join(heads)} |", "|---" * (2 + len(SIZES)) + "|"]

    def row(what: str, where: str, cells: list[str]) -> None:
        lines.append(f"| {what} | {where} | {' | '.join(cells)} |")

    row("read images", "", [size_of(size * IMAGE_KB * 1e3) for size in SIZES])
    row(
        f"decode and embed, {WORKERS} workers of one core",
        "",
        [duration(size * embed / WORKERS) for size in SIZES],
    )
    for name in ("start_seconds", "order_seconds", "write_seconds", "index_seconds"):
        for store in STORES:
            if (store, name) in each:
                row(NAMES[name], store, [duration(size * each[store, name]) for size in SIZES])
    for store in STORES:
        stored = each[store, "item_bytes"] + 2 * (4 * DIM + each[store, "vector_bytes"])
        row(
            "disk with both vectors, before `finish`",
            store,
            [size_of(size * stored) for size in SIZES],
        )
    for store in STORES:
        index = 4 * DIM + each[store, "index_bytes"]
        row("memory of one space's search, float32", store, [size_of(n * index) for n in SIZES])
    return "\n".join(lines)


def duration(seconds: float) -> str:
    if seconds < 90 * 60:
        return f"{seconds / 60:.1f} min"
    hours = seconds / 3600
    return f"{hours / 24:.1f} days" if hours >= 48 else f"{hours:.1f} h"


def size_of(count: float) -> str:
    return f"{count / 1e12:,.2f} TB" if count >= 1e12 else f"{count / 1e9:,.1f} GB"


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
        f"| step | {' | '.join(heads)} | exponent | required | verdict |",
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
