"""What one item of an upgrade costs: seconds and bytes.

    OMP_NUM_THREADS=1 python -m benchmarks.unit_costs                    # all, about 15 minutes
    OMP_NUM_THREADS=1 python -m benchmarks.unit_costs --engine embedded --items 100000
    python -m benchmarks.scale_page                             # then: the tables of docs/scale.md

One process on one core (seconds of the clock; of images those of the processor); servers beside
it on this machine, which should have nothing else to do. A gallery of --items vectors in 128
dimensions is added, an upgrade started, put in the order of uncertainty, refreshed with vectors
that are given, finished, indexed and searched. Decoding and embedding: JPEG files of photo size,
efficientnet-lite0 at 224 pixels with random weights. Rows that are measured again are replaced in
benchmarks/results/unit_costs.csv (or --out), the others kept. A file gets its index from 50,001
vectors on, PostgreSQL from 20,001, Milvus from 100,001: with fewer there is no row for it.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.engines import Place, place, size_of
from benchmarks.upgrade_world import DIM, NEW, OLD, World, memory, name

from midspan.gallery import Gallery
from midspan.gallery.location import parse_location
from midspan.spaces import Embeddings
from midspan.upgrade import Upgrade, from_embeddings

RESULTS = Path(__file__).parent / "results" / "unit_costs.csv"
COLUMNS = ("store", "name", "value", "unit", "items", "machine", "command")
ENGINES = {"embedded": 100_000, "pgvector": 50_000, "milvus": 20_000}  # items, by default
BATCH = 5000
QUERIES = 300
HNSW_LINKS = 24  # of Milvus' index, twice as many on the ground level; four bytes each
SEVERAL = 64  # images decoded, and embedded at once

Row = dict[str, Any]
Found = Iterator[tuple[str, float, str]]  # name, value, unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", action="append", choices=[*ENGINES, "images"])
    parser.add_argument("--items", type=int, help="of the galleries")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    for engine in given.engine or ["images", *ENGINES]:
        items = given.items or ENGINES.get(engine, SEVERAL)
        store = "" if engine == "images" else engine
        found = images() if engine == "images" else gallery_costs(engine, items)
        command = f"python -m benchmarks.unit_costs --engine {engine}" + (
            f" --items {items}" if given.items else ""
        )
        rows = []
        for what, value, unit in found:
            cores = f"{platform.machine()}, 1 of {os.cpu_count()} cores"
            machine = f"{cores}, load {os.getloadavg()[0]:.1f}"
            print(f"{engine:9} {what:22} {value:.4g} {unit}", flush=True)
            values = (store, what, f"{value:.4g}", unit, items, machine, command)
            rows.append(dict(zip(COLUMNS, values, strict=True)))
        save(rows, given.out)


def save(rows: list[Row], path: Path) -> None:
    kept: list[dict[str, str]] = []
    mine = {(row["store"], row["name"]) for row in rows}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            kept = [row for row in csv.DictReader(file) if (row["store"], row["name"]) not in mine]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*kept, *rows], key=lambda row: (row["store"], row["name"])))


# ---- galleries


def gallery_costs(engine: str, items: int) -> Found:
    with tempfile.TemporaryDirectory(prefix="bench-costs-") as folder:
        world = World(items, Path(folder))
        with place(engine, Path(folder)) as where:
            yield from _costs(engine, world, where)


def _costs(engine: str, world: World, where: Place) -> Found:
    items = world.items
    with Gallery.create(where.location, OLD) as gallery:
        began = time.perf_counter()
        for first, count in world.blocks():
            rows = world.vectors(OLD, first, count)
            for start in range(0, count, BATCH):
                part = range(first + start, min(first + start + BATCH, first + count))
                ids = [name(number) for number in part]
                gallery.add(
                    Embeddings(np.array(ids), rows[start : start + len(ids)], OLD),
                    uris=[f"images/{id}.jpg" for id in ids],
                    payloads=[{"n": number % 10} for number in part],
                )
        print(f"added {items / (time.perf_counter() - began):,.0f} items/s")
    before = 0.0 if engine == "pgvector" else disk(engine, where)
    with Gallery.open(where.location) as gallery:
        listing = timed_changes(gallery)
        upgrade = Upgrade.start(gallery, to=NEW, mode="direct", order="newest")
        yield "start_seconds", listing[0] / items, "s"
        seconds = timed(lambda: upgrade.reorder("uncertainty"))
        yield "order_seconds", seconds / items, "s"
        new = world.all(NEW)
        seconds = timed(partial(upgrade.run, from_embeddings(new)))
        del new
        yield "write_seconds", seconds / items, "s"
    if engine == "pgvector":  # tables are files of their own there
        vectors = relations(where, "r", like="%_vectors_%") / 2
        rest = relations(where, "r", like="%") - 2 * vectors
    elif engine == "milvus":  # a vector and the records that it changes cannot be told apart
        vectors = 4.0 * DIM * items
        rest = disk(engine, where) - 2 * vectors
    else:
        vectors = disk(engine, where) - before
        rest = before - vectors
    yield "vector_bytes", max(0.0, vectors / items - 4 * DIM), "bytes"
    yield "item_bytes", max(0.0, rest / items), "bytes"
    with Gallery.open(where.location) as gallery:
        Upgrade(gallery).finish(override="a benchmark")
        Upgrade(gallery).forget()
    yield from _index(engine, world, where)


def _index(engine: str, world: World, where: Place) -> Found:
    gc.collect()
    held, queries = memory(), world.queries(NEW, QUERIES)
    with Gallery.open(where.location) as gallery:
        gallery.search(queries[:1], space=NEW)  # what is read once is not the index
        seconds = timed(gallery.optimise)
        if engine == "embedded" and world.items > 50_000:
            yield "index_seconds", seconds / world.items, "s"
            # Beside the vectors and their int8 codes in the lists.
            grown = (memory() - held) * 2**20 / world.items
            yield "index_bytes", max(0.0, grown - 5 * DIM), "bytes"
        elif engine == "pgvector" and world.items > 20_000:
            yield "index_seconds", seconds / world.items, "s"
            yield "index_bytes", hnsw_bytes(where) / world.items - 4 * DIM, "bytes"
        elif engine == "milvus":
            if world.items > 100_000:
                yield "index_seconds", seconds / world.items, "s"
            yield "index_bytes", 2 * HNSW_LINKS * 4, "bytes"
        times = []
        for query in queries:
            began = time.perf_counter()
            gallery.search(query[None], space=NEW, k=10)
            times.append(time.perf_counter() - began)
        yield "search_seconds", float(np.median(times)), "s"


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def processor_seconds(call: Callable[[], object]) -> float:
    """For what one core does alone: other programs on the machine do not count."""
    began = time.process_time()
    call()
    return time.process_time() - began


def timed_changes(gallery: Gallery) -> list[float]:
    """Seconds of each change of state from here on; the first of a start lists the work."""
    seconds: list[float] = []
    change = gallery.change

    def measured(*arguments: Any, **settings: Any) -> Any:
        began = time.perf_counter()
        made = change(*arguments, **settings)
        seconds.append(time.perf_counter() - began)
        return made

    gallery.change = measured  # type: ignore[method-assign]
    return seconds


def disk(engine: str, where: Place) -> float:
    assert where.files is not None
    if engine == "milvus":
        from pymilvus import MilvusClient

        client = MilvusClient(uri="http://" + where.location.split("//")[1].split("/")[0])
        for collection in client.list_collections():
            client.flush(collection)
        client.close()
        time.sleep(2)
    return float(size_of(where.files))


def hnsw_bytes(where: Place) -> float:
    return relations(where, "i", like="%_hnsw_%")


def relations(where: Place, kind: str, *, like: str = "%") -> float:
    """Bytes of tables (with their indexes) or of indexes, in PostgreSQL."""
    import psycopg

    place = parse_location(where.location).catalogue
    assert place.url is not None
    size = "pg_total_relation_size" if kind == "r" else "pg_relation_size"
    with psycopg.connect(place.url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        row = connection.execute(
            f"SELECT sum({size}(oid)) FROM pg_class WHERE relkind = %s AND relname LIKE %s "
            "AND starts_with(relname, %s)".encode(),
            (kind, like, place.table),
        ).fetchone()
    assert row is not None
    return float(row[0] or 0)


# ---- images


def images() -> Found:
    import torch
    from PIL import Image

    from midspan.encoders import build_encoder

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bench-images-") as folder:
        paths = []
        for number in range(SEVERAL):
            rng = np.random.default_rng(number)
            rough = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
            picture = np.asarray(
                Image.fromarray(rough).resize((800, 600), Image.Resampling.BICUBIC)
            ).astype(np.int16)
            grain = rng.integers(-6, 7, picture.shape)
            path = Path(folder) / f"{number}.jpg"
            Image.fromarray(np.clip(picture + grain, 0, 255).astype(np.uint8)).save(path)
            paths.append(path)
        kilobytes = sum(path.stat().st_size for path in paths) / 1e3

        def decode() -> list[Any]:
            made = []
            for path in paths:
                with Image.open(path) as image:
                    made.append(np.asarray(image.convert("RGB").resize((224, 224))))
            return made

        decode()
        seconds = min(processor_seconds(decode) for _ in range(3))
        yield "decode_seconds_per_kb", seconds / kilobytes, "s/kB"
        encoder = build_encoder(backbone="efficientnet-lite0", dim=128, seed=0).eval()
        pixels = np.stack(decode())
        ids = [str(number) for number in range(SEVERAL)]
        encoder.embed(pixels[:8], ids=ids[:8], progress=False)
        embed = partial(encoder.embed, pixels, ids=ids, progress=False)
        seconds = min(processor_seconds(embed) for _ in range(3))
        yield "embed_seconds", seconds / SEVERAL, "s"


if __name__ == "__main__":
    main()
