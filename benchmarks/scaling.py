"""How time and memory grow with the number of items, with fitted exponents.

    python -m benchmarks.scaling                        # 10^4, 10^5, 10^6
    python -m benchmarks.scaling --sizes 1e4 1e5        # the small ones
    python -m benchmarks.scaling --sizes 1e7            # 20 GB of disk

Each step of a gallery's life (evaluation, adding, opening, searching, checking, planning, starting
an upgrade and writing its order, backfilling, rolling back, finishing) runs in a process of its own
with one thread, on a gallery file with vectors in 128 dimensions. Its seconds, of the clock and of
the processor (which other programs disturb less), and MiB of memory at the highest point above what
the process had before, are fitted as cost = a · items^b. Linear steps must stay below b = 1.15,
searches below 0.6 (lists of an inverted file), memory of what streams below 0.2; the last decade
alone may be 0.15 above, for it is measured with noise. Exit code 1 otherwise.
Sizes that are not run again keep their numbers in benchmarks/results/scaling.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks.scaling_steps import STEPS

RESULTS = Path(__file__).parent / "results" / "scaling.csv"
ROOT = Path(__file__).parents[1]
LINEAR, SEARCH, FLAT = 1.15, 0.6, 0.2
SLACK = 0.15  # for the exponent of the last decade alone
LEAST_SECONDS, LEAST_MIB = 0.02, 32.0  # below that a step is start-up: it says nothing of growth

WANTED = {  # exponents of time and of memory
    "evaluate": (LINEAR, LINEAR),
    "add": (LINEAR, FLAT),
    "open": (LINEAR, LINEAR),
    "search": (SEARCH, LINEAR),
    "index": (LINEAR, None),
    "count": (LINEAR, FLAT),
    "verify": (LINEAR, LINEAR),
    "plan": (LINEAR, FLAT),
    "start": (LINEAR, FLAT),
    "backfill": (LINEAR, FLAT),
    "rollback": (LINEAR, FLAT),
    "finish": (LINEAR, FLAT),
}
Values = dict[tuple[str, str], dict[int, float]]  # (step, unit) → items → value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e4, 1e5, 1e6])
    parser.add_argument("--folder", type=Path, help="for the galleries; a temporary one otherwise")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    values = read(given.results)
    for size in sorted(map(int, given.sizes)):
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="bench-scaling-", dir=given.folder) as folder:
            for step in STEPS:
                measure(step, size, Path(folder), values)
        print(f"{size:,} items: {time.perf_counter() - began:.0f} s", flush=True)
    rows = [row(what, unit, by_size) for (what, unit), by_size in values.items()]
    save(rows, given.results)
    for one in rows:
        shown = [one["exponent"] or "–", one["last_decade"] or "–", one["wanted"] or "–"]
        print(f"{one['what']:10} {one['unit']:12}", *(f"{x:>8}" for x in shown), one["verdict"])
    sys.exit(any(one["verdict"] == "WORSE" for one in rows))


def measure(step: str, size: int, folder: Path, values: Values) -> None:
    command = [sys.executable, "-m", "benchmarks.scaling_steps", step, str(size), str(folder)]
    alone = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")}
    done = subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, env=alone
    )
    found = json.loads(done.stdout.splitlines()[-1])
    if step == "write_vectors":
        return

    def note(what: str, unit: str, value: float) -> None:
        values.setdefault((what, unit), {})[size] = value
        print(f"{size:>9,} {what:10} {unit:16} {value:.5g}", flush=True)

    note(step, "s", found["seconds"])
    note(step, "cpu s", found["cpu"])
    note(step, "MiB", max(0.0, found["peak_mib"]))
    if "index_s" in found:
        note("index", "s", found["index_s"])
        note("index", "cpu s", found["index_cpu"])
    if "growth_mib" in found:
        note(step, "MiB, after 1/10", found["growth_mib"])


def fitted(by_size: dict[int, float], least: float) -> tuple[float | None, float | None]:
    """(exponent of all sizes, of the last two); None where cost is start-up only.

    What is below `least` counts as that: a step that takes a millisecond at 10^4 and at 10^5 does
    not grow, whatever the quotient of two such numbers is.
    """
    sizes = np.array(sorted(by_size), dtype=np.float64)
    costs = np.maximum([by_size[int(size)] for size in sizes], least)
    if len(sizes) < 2:
        return None, None
    x, y = np.log10(sizes), np.log10(costs)
    return float(np.polyfit(x, y, 1)[0]), float((y[-1] - y[-2]) / (x[-1] - x[-2]))


def row(what: str, unit: str, by_size: dict[int, float]) -> dict[str, object]:
    seconds, mebibytes = WANTED[what]
    timed = unit in ("s", "cpu s")
    limit, least = (seconds if timed else mebibytes), LEAST_MIB
    if timed:
        least = LEAST_SECONDS if what != "search" else 1e-4
    if unit == "MiB, after 1/10":
        limit = None  # judged by its size, below
    whole, last = fitted(by_size, least)
    verdict = ""
    if unit == "MiB, after 1/10":
        verdict = "flat" if max(by_size.values()) <= LEAST_MIB else "WORSE"
    elif limit is not None and whole is not None and last is not None:
        verdict = "ok" if whole <= limit and last <= limit + SLACK else "WORSE"
    return {
        "what": what,
        "unit": unit,
        **{f"{size:.0e}": f"{value:.5g}" for size, value in sorted(by_size.items())},
        "exponent": "" if whole is None else f"{whole:.2f}",
        "last_decade": "" if last is None else f"{last:.2f}",
        "wanted": "" if limit is None else f"<= {limit}",
        "verdict": verdict,
        "date": time.strftime("%Y-%m-%d"),
        "load": round(os.getloadavg()[0], 1),
    }


def read(path: Path) -> Values:
    values: Values = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            for one in csv.DictReader(file):
                values[one["what"], one["unit"]] = {
                    int(float(name)): float(text)
                    for name, text in one.items()
                    if "e+" in name and text
                }
    return values


def save(rows: list[dict[str, object]], path: Path) -> None:
    sizes = sorted({name for one in rows for name in one if "e+" in name}, key=float)
    ends = ("exponent", "last_decade", "wanted", "verdict", "date", "load")
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["what", "unit", *sizes, *ends], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
