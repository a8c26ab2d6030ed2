from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from midspan.client import Client
from midspan.service.app import create_app
from midspan.service.auth import Tokens
from tests.client.servers import Stub, Watched, running
from tests.service.shop import Shop, make_gallery, make_shop, open_service

READ, ADMIN = "r" * 24, "a" * 24


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return make_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def service(shop: Shop, tmp_path: Path) -> Iterator[tuple[Watched, str]]:
    """(what it saw, its url); it wants tokens."""
    place = make_gallery(shop, tmp_path / "shop.midspan")
    tokens = Tokens({"read": {"reader": READ}, "admin": {"alice": ADMIN}})
    watched = Watched(create_app(open_service(shop, place), tokens=tokens))
    with running(watched) as url:
        yield watched, url


@pytest.fixture
def client(service: tuple[Watched, str]) -> Iterator[Client]:
    with Client(service[1], token=ADMIN) as client:
        yield client


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.close()
