"""Several galleries in one service: each its own items, encoders, jobs and upgrade."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from midspan.cli.serve import named_galleries
from midspan.errors import ConfigError, RequestError
from midspan.service.app import create_app
from midspan.service.auth import Tokens
from midspan.service.settings import GallerySettings, Settings, read_settings
from tests.client.servers import Watched, running
from tests.service.shop import LOCAL, Shop, encoded, make_gallery, name, open_service

READ, ADMIN = "r" * 24, "a" * 24


@pytest.fixture
def app(shop: Shop, tmp_path: Path) -> Any:
    """`shop` (60 items, old encoder, can be upgraded) and `archive` (12, new encoder alone)."""
    service = open_service(shop, make_gallery(shop, tmp_path / "shop.midspan"), name="shop")
    other = open_service(
        shop,
        make_gallery(shop, tmp_path / "archive.midspan", count=12),
        name="archive",
        new_encoder=None,
        resources=service.resources,
    )
    return create_app(
        service, other, tokens=Tokens({"read": {"r": READ}, "admin": {"alice": ADMIN}})
    )


@pytest.fixture
def client(app: Any) -> Iterator[TestClient]:
    with TestClient(app, base_url=LOCAL, headers={"Authorization": f"Bearer {ADMIN}"}) as client:
        yield client


def test_galleries_are_listed_and_the_first_is_the_default(client: TestClient) -> None:
    listed = client.get("/v1/galleries").json()["galleries"]
    assert [(one["name"], one["default"], one["items"]) for one in listed] == [
        ("shop", True, 60),
        ("archive", False, 12),
    ]
    assert client.get("/v1/gallery").json() == client.get("/v1/galleries/shop").json()
    archive = client.get("/v1/galleries/archive").json()
    assert (archive["name"], archive["items"], archive["can_upgrade"]) == ("archive", 12, False)
    assert client.get("/v1/galleries/archive/gallery").json() == archive
    assert client.get("/v1/gallery").json()["can_upgrade"] is True


def test_a_search_and_its_thumbnails_stay_in_their_gallery(client: TestClient) -> None:
    asked = {"id": name(3), "k": 50}
    for prefix, items in (("/v1", 60), ("/v1/galleries/archive", 12)):
        hits = client.post(f"{prefix}/search", json=asked).json()["results"]
        assert len(hits) == min(50, items - 1)
        assert all(hit["thumbnail"].startswith(f"{prefix}/thumbnails/") for hit in hits)
        assert client.get(hits[0]["thumbnail"]).status_code == 200
        image = {"file": ("a.png", encoded(3))}
        response = client.post(f"{prefix}/search/image", files=image, data={"k": "50"})
        assert len(response.json()["results"]) == min(50, items)


def test_writes_and_the_audit_log_stay_in_their_gallery(client: TestClient) -> None:
    put = client.put("/v1/galleries/archive/items/new%2Fone", files={"file": ("a", encoded(1))})
    assert put.status_code == 200
    assert client.get("/v1/galleries/archive/items/new%2Fone").json()["id"] == "new/one"
    assert client.get("/v1/items/new%2Fone").status_code == 404
    audit = client.get("/v1/galleries/archive/audit").json()["entries"]
    assert (audit[0]["what"], audit[0]["details"]["first"]) == ("items put", "new/one")
    assert all(one["what"] != "items put" for one in client.get("/v1/audit").json()["entries"])


def test_the_same_idempotency_key_in_two_galleries_is_two_writes(client: TestClient) -> None:
    headers = {"Idempotency-Key": "one"}
    for prefix in ("/v1", "/v1/galleries/archive"):
        answer = client.delete(f"{prefix}/items/{name(2)}", headers=headers)
        assert (answer.json(), "idempotency-replayed" in answer.headers) == ({"deleted": 1}, False)


def test_upgrade_of_one_gallery_leaves_the_other_unchanged(client: TestClient) -> None:
    assert client.post("/v1/upgrade/start", json={"order": "random"}).status_code == 200
    assert client.get("/v1/upgrade").json()["phase"] == "running"
    assert client.get("/v1/galleries/archive/upgrade").json()["phase"] == "none"
    refused = client.post("/v1/galleries/archive/upgrade/start", json={"order": "random"})
    assert refused.status_code == 409
    by_name = {one["name"]: one["phase"] for one in client.get("/v1/galleries").json()["galleries"]}
    assert by_name == {"shop": "running", "archive": "none"}
    text = client.get("/metrics").text
    assert re.search(r'upgrade_phase\{gallery="shop",phase="running"\} 1.0', text)
    assert re.search(r'upgrade_phase\{gallery="archive",phase="none"\} 1.0', text)


def test_job_location_header_leads_to_the_job_of_the_gallery(client: TestClient) -> None:
    answer = client.post(
        "/v1/galleries/archive/duplicates", json={}, headers={"Prefer": "respond-async"}
    )
    assert answer.status_code == 202
    assert answer.headers["location"].startswith("/v1/galleries/archive/jobs/")
    assert client.get(answer.headers["location"]).status_code == 200
    assert client.get(f"/v1/jobs/{answer.json()['job_id']}").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/v1/galleries/nothing",
        "/v1/galleries/nothing/items",
        "/v1/galleries/archive/galleries",
        "/v1/galleries/archive/galleries/shop/items",
        "/v1/galleries/archive/nothing",
        "/v1/galleries/%2e%2e/items",
        "/v1/galleries/a%0ab/items",
        "/v1/galleries/",
    ],
)
def test_unknown_gallery_paths_are_not_found(client: TestClient, path: str) -> None:
    assert client.get(path).status_code in (400, 404)


def test_route_role_holds_below_a_gallery_path(app: Any) -> None:
    with TestClient(app, base_url=LOCAL) as anyone:
        assert anyone.get("/v1/galleries/archive/items").status_code == 401
        assert anyone.get("/v1/galleries/nothing/items").status_code == 401  # no oracle of names
        reader = {"Authorization": f"Bearer {READ}"}
        assert anyone.get("/v1/galleries/archive/items", headers=reader).status_code == 200
        refused = anyone.delete(f"/v1/galleries/archive/items/{name(1)}", headers=reader)
        assert refused.status_code == 403


def test_client_with_gallery_reads_only_that_gallery(app: Any) -> None:
    from midspan.client import Client

    with (
        running(Watched(app)) as url,
        Client(url, token=ADMIN, gallery="archive") as archive,
        Client(url, token=ADMIN) as default,
        Client(url, token=ADMIN, gallery="nothing") as nothing,
    ):
        assert repr(archive) == f"Client('{url}', gallery='archive')"
        assert [one.name for one in archive.galleries()] == ["shop", "archive"]
        assert (archive.info().items, default.info().items) == (12, 60)
        assert len(list(archive.items())) == 12
        assert archive.health()
        assert archive.ready()
        assert archive.thumbnail(name(1))
        assert {hit.id for hit in archive.search(id=name(1), k=50)} < {name(n) for n in range(12)}
        archive.put("b c/ü", image=encoded(5))
        assert archive.get("b c/ü").id == "b c/ü"
        assert next(archive.events()).data["name"] == "archive"
        assert archive.explore.duplicates().items == 13
        with pytest.raises(RequestError, match="no gallery 'nothing'"):
            nothing.info()


def test_galleries_are_read_from_command_line_and_settings_file(tmp_path: Path) -> None:
    named = named_galleries(["shop=a.midspan", "archive=postgresql://h/db?table=t"])
    assert [one["gallery"] for one in named.values()] == ["a.midspan", "postgresql://h/db?table=t"]
    assert named_galleries(["postgresql://h/db?table=t"])["default"]["gallery"].endswith("table=t")
    file = tmp_path / "serve.toml"
    file.write_text(
        'batch = 8\n[[galleries]]\nname = "shop"\ngallery = "b.midspan"\nencoder = "e"\n'
        '[[galleries]]\nname = "third"\ngallery = "c.midspan"\nbatch = 9\n'
    )
    settings = read_settings(file, {"port": 1, "encoder": "x"}, galleries=list(named.values()))
    assert [(one.name, one.gallery, one.batch, one.encoder) for one in settings.galleries] == [
        ("shop", "a.midspan", 8, "e"),
        ("archive", "postgresql://h/db?table=t", 8, "x"),
        ("third", "c.midspan", 9, "x"),
    ]
    assert settings.server.port == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[galleries]]\nname = "a"\ngallery = "a"\nbatsh = 1', "did you mean 'batch'"),
        ('[[galleries]]\ngallery = "a"', "requires a name"),
        ('[[galleries]]\nname = "a b"\ngallery = "a"', "expected up to 64 letters"),
        ('[[galleries]]\nname = "a"\nport = 1\ngallery = "a"', "no setting 'port'"),
        ('gallery = "x"\n[[galleries]]\nname = "a"\ngallery = "a"', "is of one gallery"),
        ('[galleries]\nname = "a"', r"under \[\[galleries\]\]"),
        ("batch = 8", "no gallery"),
        (
            '[[galleries]]\nname = "a"\ngallery = "./a"\n[[galleries]]\nname = "b"\ngallery = "a"',
            "same location",
        ),
        (
            'uploads = "u"\n[[galleries]]\nname = "a"\ngallery = "a"\n'
            '[[galleries]]\nname = "b"\ngallery = "b"',
            "share uploads",
        ),
    ],
)
def test_gallery_settings_that_conflict_raise(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_settings(file, {})


def test_duplicated_gallery_names_or_uploads_raise() -> None:
    uploads = Path("u")
    first = GallerySettings(name="a", gallery="x", uploads=uploads)
    with pytest.raises(ConfigError, match="same name"):
        Settings(galleries=(first, GallerySettings(name="a", gallery="y")))
    with pytest.raises(ConfigError, match="same uploads"):
        Settings(galleries=(first, GallerySettings(name="b", gallery="z", uploads=uploads)))
    with pytest.raises(ConfigError, match="each is NAME=LOCATION"):
        named_galleries(["a.midspan", "b=b.midspan"])
    with pytest.raises(ConfigError, match="called 'a'"):
        named_galleries(["a=a.midspan", "a=b.midspan"])
