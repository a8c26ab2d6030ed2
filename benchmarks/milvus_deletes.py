"""Whether a Milvus server brings removed rows back: rows are replaced again and again, and counted.

    python -m benchmarks.milvus_deletes [--seconds 150] [--compaction true]

20,000 rows, of which 100 at a time are inserted anew and the former ones deleted by their keys,
while a thread flushes every three seconds, so that segments are sealed and compacted. By strong
reads there should be 20,000 rows at every moment. A server from the wheel, busy cores help. Adds
a line to benchmarks/results/milvus_deletes.csv.
"""

from __future__ import annotations

import argparse
import csv
import random
import threading
import time
from pathlib import Path
from typing import Any

from tests.gallery import milvus

from midspan.gallery.engines.milvus_connection import MilvusConnection
from midspan.gallery.engines.milvus_location import milvus_location
from midspan.gallery.location import parse_location

RESULTS = Path(__file__).parent / "results" / "milvus_deletes.csv"
ROWS = 20_000
BATCH = 100
EVERY = 3.0  # seconds between flushes
NAME = "replaced"
COLUMNS = ("server", "compaction", "seconds", "replaced", "too_many", "after_deleting_again")


def row(number: int, generation: int) -> dict[str, Any]:
    key = number + ROWS * generation
    return {"row": key, "judged": True, "payload": {}, "vector": [float(number), 1.0]}


def delete(client: Any, keys: list[int]) -> None:
    for start in range(0, len(keys), 500):
        client.delete(NAME, filter=f"row in {keys[start : start + 500]}")


def too_many(client: Any) -> int:
    (answer,) = client.query(
        NAME, filter="", output_fields=["count(*)"], consistency_level="Strong"
    )
    return int(answer["count(*)"]) - ROWS


def replace_rows(client: Any, seconds: float) -> list[int]:
    """The present generation of each row, after so long."""
    present = [0] * ROWS
    for start in range(0, ROWS, 2000):
        client.insert(NAME, [row(number, 0) for number in range(start, start + 2000)])
    done, rng = threading.Event(), random.Random(0)

    def flush() -> None:
        while not done.wait(EVERY):
            client.flush(NAME)

    flusher = threading.Thread(target=flush)
    flusher.start()
    until, generation = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        generation += 1
        part = rng.sample(range(ROWS), BATCH)
        former = [number + ROWS * present[number] for number in part]
        client.insert(NAME, [row(number, generation) for number in part])
        delete(client, former)
        for number in part:
            present[number] = generation
    done.set()
    flusher.join()
    return present


def returned(client: Any, present: list[int]) -> list[int]:
    keys, after = list[int](), -1
    while page := client.query(
        NAME, filter=f"row > {after}", limit=10_000, consistency_level="Strong"
    ):
        after = page[-1]["row"]
        keys += [one["row"] for one in page if present[one["row"] % ROWS] != one["row"] // ROWS]
    return keys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--compaction", choices=["true", "false"], default="true")
    given = parser.parse_args()
    data = milvus.wheel()
    if data is None:
        raise SystemExit("this wants a Milvus server: make .venv/milvus-server")
    milvus.SETTINGS["DATACOORD_ENABLECOMPACTION"] = given.compaction
    one = milvus.Milvus(data)
    try:
        place = parse_location(f"{one.location('shop')}?catalogue=memory:")
        server = MilvusConnection(milvus_location(place), shown=place.shown)
        server.make(NAME, dim=2, index={"index_type": "FLAT", "metric_type": "L2", "params": {}})
        server.load(NAME)
        present = replace_rows(server.client, given.seconds)
        found = too_many(server.client)
        delete(server.client, returned(server.client, present))
        version = server.client.get_server_version()
        values = (version, given.compaction, given.seconds, max(present) * BATCH, found)
        line = dict(zip(COLUMNS, (*values, too_many(server.client)), strict=True))
    finally:
        one.stop()
    print(line)
    fresh = not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS, lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(line)


if __name__ == "__main__":
    main()
