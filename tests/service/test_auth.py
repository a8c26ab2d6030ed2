from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient

from midspan.errors import ConfigError
from midspan.service.app import OPENAPI, create_app
from midspan.service.auth import Tokens, check_exposure, load_tokens
from midspan.service.routes import TABLE, Route
from midspan.service.settings import ServerSettings, is_loopback
from tests.service.conftest import Serve
from tests.service.shop import LOCAL, Shop, close, open_service

READ, ADMIN = "r" * 20, "a" * 20
TOKENS = {"read": {"reader": READ}, "admin": {"alice": ADMIN}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def guarded(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    from tests.service.shop import make_gallery

    place = make_gallery(shop, tmp_path_factory.mktemp("guarded") / "shop.midspan", count=5)
    app = create_app(open_service(shop, place), tokens=Tokens(TOKENS))
    return TestClient(app, base_url=LOCAL)  # without its lifespan: nothing runs, nothing changes


def ask(client: TestClient, route: Route, headers: dict[str, str]) -> int:
    path = route.path.replace("{id:path}", "nobody").replace("{name}", "nothing.js")
    return client.request(route.method, path, headers=headers).status_code


@pytest.mark.parametrize("route", TABLE, ids=lambda route: f"{route.method} {route.path}")
def test_route_with_a_weaker_token_is_refused(guarded: TestClient, route: Route) -> None:
    without = ask(guarded, route, {})
    wrong = ask(guarded, route, bearer("x" * 20))
    if route.role == "open":
        assert without not in (401, 403)
        return
    assert without == wrong == 401
    assert ask(guarded, route, {"Authorization": f"Basic {READ}"}) == 401
    if route.role == "admin":
        assert ask(guarded, route, bearer(READ)) == 403
    elif route.path != "/v1/events":  # it would go on for ever
        assert ask(guarded, route, bearer(READ)) not in (401, 403)


def test_routes_that_write_require_the_admin_role() -> None:
    """A new route that writes cannot be given to readers by mistake."""
    readers = {route.path for route in TABLE if route.method != "GET" and route.role != "admin"}
    kinds = ("vector", "item", "image", "compare")
    assert readers == {"/v1/search", "/v1/facets", *(f"/v1/search/{kind}" for kind in kinds)}
    public = {route.path for route in TABLE if route.role == "open"}
    assert public == {"/", "/docs", "/page/{name}", "/healthz", "/readyz"}


def test_every_route_of_the_app_is_in_the_route_table(guarded: TestClient) -> None:
    known = {route.key for route in TABLE} | {(OPENAPI.method, OPENAPI.path)}
    routes = guarded.app.routes  # type: ignore[attr-defined]
    assert {(method, route.path) for route in routes for method in route.methods} == known
    assert guarded.get("/openapi.json").status_code == 401


def test_admin_token_reads_and_is_named_in_the_audit_log(serve: Serve) -> None:
    client = serve(tokens=Tokens(TOKENS))
    assert client.get("/v1/gallery", headers=bearer(ADMIN)).status_code == 200
    assert client.delete("/v1/items/kind0%2F0000", headers=bearer(ADMIN)).json() == {"deleted": 1}
    entries = client.get("/v1/audit", headers=bearer(ADMIN)).json()["entries"]
    assert entries[0]["who"].startswith("alice from ")


def test_cross_site_requests_are_forbidden(serve: Serve) -> None:
    client = serve()
    rebound = client.get("/v1/gallery", headers={"host": "evil.example"})
    assert (rebound.status_code, rebound.json()["error"]["type"]) == (403, "Forbidden")
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
    ):
        answer = client.post("/v1/upgrade/pause", headers=headers)
        assert answer.status_code == 403, headers
        assert "access-control-allow-origin" not in answer.headers
    own = client.post("/v1/search/item", headers={"origin": LOCAL}, json={"id": "kind0/0000"})
    assert own.status_code == 200
    for name in ("localhost:8080", "127.0.0.1", "[::1]:80"):
        assert client.get("/healthz", headers={"host": name}).status_code == 200
    assert client.options("/v1/gallery", headers={"origin": "http://evil.example"}).status_code in (
        400,
        403,
        405,
    )


def test_host_beyond_loopback_without_tokens_raises() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org"):
        assert not is_loopback(host)
        with pytest.raises(ConfigError, match="no tokens"):
            check_exposure(host=host, loopback=is_loopback(host), tokens=Tokens({}))
        check_exposure(host=host, loopback=False, tokens=Tokens(TOKENS))
    for host in ("127.0.0.1", "127.8.0.1", "::1", "localhost"):
        check_exposure(host=host, loopback=is_loopback(host), tokens=Tokens({}))


def test_app_without_tokens_beyond_loopback_is_refused(shop: Shop, tmp_path: Path) -> None:
    from tests.service.shop import make_gallery

    service = open_service(shop, make_gallery(shop, tmp_path / "g.midspan", count=2))
    try:
        with pytest.raises(ConfigError, match="can be reached from other machines"):
            create_app(service, tokens=Tokens({}), server=ServerSettings(host="0.0.0.0"))
    finally:
        close(service)


def test_tokens_are_read_from_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(f'read = "{READ}"\n[admin]\nalice = "{ADMIN}"\n')
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_tokens(file, {})
    file.chmod(0o600)
    tokens = load_tokens(file, {"MIDSPAN_ADMIN_TOKEN": "e" * 30})
    assert tokens.caller(f"Bearer {READ}").admin is False
    assert tokens.caller(f"Bearer {ADMIN}").name == "alice"
    assert tokens.caller("bearer " + "e" * 30).admin is True
    assert not load_tokens(None, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tokens(tmp_path / "nothing", {})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('read = "short"', "16 or more"),
        ('read = "with a space in the middle"', "without spaces"),
        ('owner = "xxxxxxxxxxxxxxxxxxxx"', "expected read, admin or tenants"),
        ("read = 5", "requires a token"),
        ("", "expected tokens for read and admin"),
        (f'read = "{READ}"\nadmin = "{READ}"', "are the same"),
        ("read", "not valid TOML"),
    ],
)
def test_bad_token_files_raise_config_error(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=word):
        load_tokens(file, {})


def test_tokens_are_kept_as_digests_only() -> None:
    tokens = Tokens(TOKENS)
    seen = repr(vars(tokens)) + repr(tokens._tokens)
    assert READ not in seen
    assert ADMIN not in seen


def test_token_in_the_query_string_is_unauthorized(guarded: TestClient) -> None:
    query = urlencode({"token": READ, "access_token": READ})
    assert guarded.get(f"/v1/gallery?{query}").status_code == 401
