"""Tokens that are bound to a tenant: whatever they ask, they meet their own items alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from midspan.errors import ConfigError
from midspan.service.auth import Tokens, load_tokens
from midspan.service.routes import OF_TENANTS, TABLE
from tests.service.conftest import Serve
from tests.service.shop import Shop, encoded
from tests.service.test_routes_search import service_of

ACME, OTHER, READ, ADMIN = (f"{name}-token-of-the-test" for name in ("acme", "beta", "r", "a"))
TOKENS = {"read": {"r": READ}, "admin": {"a": ADMIN}, "tenants": {"acme": ACME, "beta": OTHER}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def client(serve: Serve, shop: Shop) -> TestClient:
    """Both tenants have an item called `one`, with the vector of the other's `two`."""
    made = serve(tokens=Tokens(TOKENS))
    gallery = service_of(made).gallery
    some = gallery.vectors(["kind0/0000", "kind1/0001"], space=gallery.space.fingerprint)
    for name, order in (("acme", [0, 1]), ("beta", [1, 0])):
        rows = some[np.array(order)]
        renamed = type(rows)(np.array(["one", "two"]), rows.vectors, rows.space)
        uris = [str(shop.images / f"{number:04d}.png") for number in order]
        gallery.tenant(name).add(renamed, uris=uris)
    return made


def ids(answer: Any) -> list[str]:
    return [hit["id"] for hit in answer.json()["results"]]


def test_tenant_search_returns_only_its_own_items(client: TestClient) -> None:
    acme = bearer(ACME)
    vector = client.get("/v1/items/one/vector", headers=acme).json()["vector"]
    assert client.get("/v1/items/one/vector", headers=bearer(OTHER)).json()["vector"] != vector
    for body in (
        {"vector": vector, "k": 50},
        {"vector": vector, "k": 50, "filter": {"tenant": "beta"}},
        {"vector": vector, "k": 50, "filter": {"$not": {"tenant": "acme"}}},
        {"vector": vector, "k": 50, "with_vectors": True, "exact": True},
    ):
        answer = client.post("/v1/search/vector", json=body, headers=acme)
        expected = [] if "filter" in body else ["one", "two"]
        assert ids(answer) == expected, body
        assert ids(client.post("/v1/search", json=body, headers=acme)) == expected
    assert answer.json()["results"][0]["vector"] == pytest.approx(vector)
    assert ids(client.post("/v1/search/item", json={"id": "one"}, headers=acme)) == ["two"]
    form = {"file": ("a.png", encoded(0), "image/png")}
    assert ids(client.post("/v1/search/image", files=form, headers=acme)) == ["one", "two"]
    everything = client.post(
        "/v1/search/vector", json={"vector": vector, "k": 100}, headers=bearer(READ)
    )
    assert {"acme:one", "beta:two", "kind0/0000"} <= set(ids(everything))


def test_tenant_reads_only_its_own_items(client: TestClient) -> None:
    acme = bearer(ACME)
    page = client.get("/v1/items", params={"limit": 1}, headers=acme).json()
    assert [item["id"] for item in page["items"]] == ["one"]
    rest = client.get("/v1/items", params={"after": page["next"]}, headers=acme).json()
    assert [item["id"] for item in rest["items"]] == ["two"]
    assert client.get(page["items"][0]["thumbnail"], headers=acme).status_code == 200
    for id in ("kind0/0000", "beta:one", "acme:one", "../beta:one"):
        for path in (f"/v1/items/{id}", f"/v1/vectors/{id}", f"/v1/thumbnails/{id}"):
            assert client.get(path, headers=acme).status_code == 404, path
        asked = client.post("/v1/search/item", json={"id": id}, headers=acme)
        assert asked.status_code == 404


def test_tenant_token_on_other_routes_is_forbidden(client: TestClient) -> None:
    for route in TABLE:
        if route.key in OF_TENANTS or route.role == "open":
            continue
        path = route.path.replace("{id:path}", "one").replace("{job_id}", "x")
        answer = client.request(route.method, path, headers=bearer(ACME))
        assert answer.status_code == 403, route.key


def test_tenant_tokens_are_read_from_the_token_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(f'admin = "{ADMIN}"\n[tenants]\nacme = "{ACME}"\n')
    file.chmod(0o600)
    caller = load_tokens(file, {}).caller(f"Bearer {ACME}")
    assert (caller.tenant, caller.admin, caller.name) == ("acme", False, "tenant acme")
    file.write_text(f'[tenants]\n"a:b" = "{ACME}"\n')
    with pytest.raises(ConfigError, match="tenant 'a:b'"):
        load_tokens(file, {})
