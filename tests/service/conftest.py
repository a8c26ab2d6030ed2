"""One shop for all tests of the service; a gallery and an application for those that ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from midspan.service import upgrade_worker
from midspan.service.app import create_app
from midspan.service.auth import Tokens
from tests.service.shop import LOCAL, Shop, make_gallery, make_shop, open_service

Serve = Callable[..., TestClient]


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return make_shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module", autouse=True)
def looking_often() -> Iterator[None]:
    """The service's worker waits a second between its looks at the gallery: not here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upgrade_worker, "LOOK", 0.1)
        yield


@pytest.fixture(scope="module")
def shared(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """For tests that only read."""
    place = make_gallery(shop, tmp_path_factory.mktemp("gallery") / "shop.midspan")
    app = create_app(open_service(shop, place), tokens=Tokens({}))
    with TestClient(app, base_url=LOCAL) as client:
        yield client


@pytest.fixture
def serve(shop: Shop, tmp_path: Path) -> Iterator[Serve]:
    """serve(tokens=…, **settings): a service over a gallery of its own."""
    opened: list[TestClient] = []
    place = tmp_path / "shop.midspan"

    def start(*, tokens: Tokens | None = None, **changes: Any) -> TestClient:
        if not place.exists():
            make_gallery(shop, place)
        app = create_app(open_service(shop, str(place), **changes), tokens=tokens or Tokens({}))
        client = TestClient(app, base_url=LOCAL)
        client.__enter__()
        opened.append(client)
        return client

    yield start
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def client(serve: Serve) -> TestClient:
    return serve()
