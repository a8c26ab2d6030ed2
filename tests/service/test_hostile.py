"""Whatever comes, the answer is 4xx or success, and nothing outside of the gallery is touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from midspan.service.app import create_app
from midspan.service.auth import Tokens
from midspan.service.image_roots import ImageRoots
from midspan.service.settings import Limits
from tests.service import corpus
from tests.service.shop import LOCAL, Shop, make_gallery, open_service

LIMITS = Limits(decode_workers=1, decode_seconds=10.0, json_bytes=2**20, image_bytes=2**20)
JSON_ROUTES = (
    ("POST", "/v1/search/vector"),
    ("POST", "/v1/search/item"),
    ("POST", "/v1/search/compare"),
    ("POST", "/v1/items"),
    ("PUT", "/v1/items/fuzz"),
    ("PATCH", "/v1/items/kind0%2F0001"),
    ("POST", "/v1/upgrade/plan"),
    ("POST", "/v1/upgrade/run"),
    ("POST", "/v1/upgrade/gate"),
)


@pytest.fixture(scope="module")
def hostile(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("hostile")
    place = make_gallery(shop, folder / "shop.midspan", count=12)
    app = create_app(open_service(shop, place, limits=LIMITS, new_encoder=None), tokens=Tokens({}))
    before = files(shop.folder)
    with TestClient(app, base_url=LOCAL) as client:
        yield client
        assert client.get("/v1/gallery/verify").json()["ok"] is True
        assert client.get("/healthz").status_code == 200
    assert files(shop.folder) == before
    names = {file.relative_to(folder).parts[0] for file in folder.rglob("*") if file.is_file()}
    assert all(name.startswith("shop.midspan") for name in names)


def files(folder: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def fine(client: TestClient, method: str, path: str, **what: object) -> int:
    answer = client.request(method, path, **what)  # type: ignore[arg-type]
    assert answer.status_code < 500, (method, path, answer.text)
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert set(error) == {"type", "message", "request_id"}
        assert "Traceback" not in error["message"]
        assert len(error["message"]) <= 2000
    return answer.status_code


@pytest.mark.slow
def test_hostile_images_are_refused_without_a_server_error(hostile: TestClient) -> None:
    for name, data in corpus.images().items():
        for method, path in (("POST", "/v1/search/image"), ("PUT", f"/v1/items/img-{name}")):
            status = fine(hostile, method, path, files={"file": (name, data)})
            assert status in (200, 413, 422), name
            if name.endswith(("-tail", "-and-zip", "-and-html")) and not name.startswith("TIFF"):
                assert status == 200, f"{name}: a whole image with something behind it is one"
            if name in ("hungry", "huge-size", "wide", "many-frames", "empty", "svg", "eps"):
                assert status == 422, name


def test_hostile_json_causes_no_server_error(hostile: TestClient) -> None:
    headers = {"content-type": "application/json"}
    for content in corpus.bodies().values():
        for method, path in JSON_ROUTES:
            fine(hostile, method, path, content=content, headers=headers)


def test_hostile_forms_are_refused(hostile: TestClient) -> None:
    for name, kind, body in corpus.forms():
        headers = {"content-type": kind.decode()}
        for method, path in (
            ("POST", "/v1/search/image"),
            ("POST", "/v1/search/compare"),
            ("PUT", "/v1/items/form"),
        ):
            assert fine(hostile, method, path, content=body, headers=headers) >= 400, name


@pytest.mark.slow
def test_mutated_images_and_bodies_cause_no_server_error(hostile: TestClient) -> None:
    """The same that benchmarks/fuzz_service.py does by the ten thousand."""
    for seed in range(120):
        fine(hostile, "POST", "/v1/search/image", files={"file": corpus.mutated(seed)})
    headers = {"content-type": "application/json"}
    for seed in range(120):
        method, path = JSON_ROUTES[seed % len(JSON_ROUTES)]
        body = corpus.mutated_body(seed)
        fine(hostile, method, path, content=body, headers=headers)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/items/%00", "/v1/items/", "/v1/items/%ff%fe", "/v1/items/" + "x" * 3000,
        "/v1/items?limit=x", "/v1/items?after=%00", "/v1/items?filter=%7B%22a%22%3A%7B%7D%7D",
        "/v1/items?filter=null", "/v1/thumbnails/..%2f..%2f..%2fetc%2fpasswd", "/v1//items",
        "/v1/thumbnails/x?size=-1", "/v1/upgrade/flips?limit=99999999999999999999",
        "/v1/upgrade/failures?after=%0a", "/v1/audit?limit=0", "/nothing", "/v1/items/%F0%9F%98%80",
    ],
)  # fmt: skip
def test_hostile_paths_cause_no_server_error(hostile: TestClient, path: str) -> None:
    fine(hostile, "GET", path)
    fine(hostile, "DELETE", path.partition("?")[0])


def test_paths_outside_the_allowed_folders_are_not_shown(tmp_path: Path) -> None:
    images = tmp_path / "images"
    image_roots = ImageRoots(images=[images], uploads=None)
    shown = {
        f"{images}/a.png": True,
        f"{images}/sub/b.png": True,
        f"{images}/sub/../b.png": True,
        f"{images}/../a.png": False,
        f"{images}/sub/../../a.png": False,
        f"{images}/..": False,
        f"{images}x/a.png": False,
        f"{tmp_path}/a.png": False,
        "a.png": False,
        "/a.png": False,
        f"{images}/set.npz#3": True,
    }
    for _ in range(2):  # the second time from memory
        assert {uri: image_roots.may_show(uri) for uri in shown} == shown
