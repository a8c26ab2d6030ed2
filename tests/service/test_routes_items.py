from __future__ import annotations

import io
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from midspan.service.auth import Tokens
from midspan.upgrade import Upgrade
from tests.service.conftest import Serve
from tests.service.shop import Shop, encoded, name
from tests.service.test_routes_search import service_of, vector_of


def path(id: str) -> str:
    return f"/v1/items/{quote(id, safe='')}"


def test_item_pages_hold_each_item_once(shared: TestClient) -> None:
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = shared.get("/v1/items", params={"after": after, "limit": 25}).json()
        seen += [item["id"] for item in page["items"]]
        after = page["next"]
    assert seen == sorted(name(number) for number in range(60))
    cheap = shared.get("/v1/items", params={"filter": '{"price": {"$lt": 3}}'}).json()
    assert sorted(item["payload"]["price"] for item in cheap["items"]) == [0, 1, 2]
    assert shared.get("/v1/items", params={"filter": "{"}).status_code == 422
    assert shared.get("/v1/items", params={"limit": 0}).status_code == 422


def test_an_item_put_as_image_is_embedded_stored_and_found(client: TestClient) -> None:
    service = service_of(client)
    id = "new/ü 1?#"  # a name that needs quoting
    answer = client.put(path(id), files={"file": encoded(77)}, data={"payload": '{"labels": 5}'})
    assert answer.status_code == 200, answer.text
    item = client.get(path(id)).json()
    assert (item["payload"], item["revision"]) == ({"labels": 5}, 1)
    stored = Path(item["uri"])
    assert stored.read_bytes() == encoded(77)
    assert service.image_roots.uploads is not None
    assert stored.is_relative_to(service.image_roots.uploads)
    assert stored.stat().st_mode & 0o077 == 0
    hit = client.post("/v1/search/image", files={"file": encoded(77)}).json()["results"][0]
    assert hit["id"] == id
    assert client.get(hit["thumbnail"]).headers["x-content-type-options"] == "nosniff"

    again = client.put(path(id), files={"file": encoded(78)})
    assert again.json()["written"] == 1
    assert not stored.exists(), "the replaced image is still there"
    replaced = client.get(path(id)).json()
    assert (replaced["revision"], replaced["payload"]) == (2, {})

    assert client.delete(path(id)).json() == {"deleted": 1}
    assert client.delete(path(id)).json() == {"deleted": 0}
    assert not Path(replaced["uri"]).exists()
    assert client.get(path(id)).status_code == 404


def test_put_image_ignores_the_client_file_name(client: TestClient, tmp_path: Path) -> None:
    before = {file for file in tmp_path.rglob("*") if file.is_file()}
    for number, evil in enumerate(["../../evil.png", "/etc/evil.png", "a\\..\\evil.png", ""]):
        client.put(path(f"e{number}"), files={"file": (evil or "x", encoded(number))})
    for id in ("..", "../../x", "/etc/passwd"):
        client.put(path(id), files={"file": encoded(9)})
    new = {file for file in tmp_path.rglob("*") if file.is_file()} - before
    uploads = service_of(client).image_roots.uploads
    assert uploads is not None
    outside = [f for f in new if not f.is_relative_to(uploads) and ".midspan" not in f.name]
    assert outside == []
    assert all(file.suffix == ".image" for file in new if file.is_relative_to(uploads))


def test_shared_image_is_kept_when_one_of_its_items_is_deleted(client: TestClient) -> None:
    for id in ("a", "b"):
        client.put(path(id), files={"file": encoded(5)})
    client.delete(path("a"))
    assert client.get("/v1/thumbnails/b").status_code == 200


def test_put_by_vector_then_patch_changes_only_the_payload(client: TestClient) -> None:
    body = {"vector": vector_of(client, 3), "payload": {"x": 1}, "uri": "s3://bucket/3"}
    assert client.put(path("v"), json=body).status_code == 200
    item = client.get(path("v")).json()
    assert (item["uri"], item["thumbnail"]) == ("s3://bucket/3", None)
    patched = client.patch(path("v"), json={"payload": {"x": 2}}).json()
    assert (patched["payload"], patched["revision"]) == ({"x": 2}, item["revision"])
    assert client.patch(path("nobody"), json={"payload": {}}).status_code in (404, 422)
    assert client.put(path("v"), json={"vector": [1.0]}).status_code == 422
    for odd in ("v\n", "v\x00", "v\x85"):
        assert client.put(path(odd), json=body).status_code == 400
    assert client.get(path("v")).json()["revision"] == item["revision"]


def test_a_batch_is_written_whole_or_not_at_all(client: TestClient) -> None:
    vectors = [vector_of(client, number) for number in range(3)]
    items = [{"id": f"b{row}", "vector": vector} for row, vector in enumerate(vectors)]
    assert client.post("/v1/items", json={"items": items}).json()["written"] == 3
    mixed = [{"id": "b9", "vector": vectors[0]}, {"id": "b0", "vector": vectors[1]}]
    refused = client.post("/v1/items", json={"items": mixed, "mode": "add"})
    assert refused.status_code == 422
    assert client.get(path("b9")).status_code == 404
    ragged = [{"id": "x", "vector": [1.0]}, {"id": "y", "vector": [1.0, 2.0]}]
    assert client.post("/v1/items", json={"items": ragged}).status_code == 422


def test_put_without_an_old_vector_during_an_upgrade_is_refused(client: TestClient) -> None:
    service = service_of(client)
    old, new = (one.space for one in service.encoders.loaded)
    Upgrade.start(service.gallery, to=new, order="random")
    body = {"vector": [1.0] * new.dim, "space": new.fingerprint}
    refused = client.put(path("fresh"), json=body)
    assert refused.status_code == 422
    assert "promises a rollback" in refused.json()["error"]["message"]
    both = {**body, "also": {old.fingerprint: [1.0] * old.dim}}
    assert client.put(path("fresh"), json=both).json()["spaces"] == [
        new.fingerprint,
        old.fingerprint,
    ]
    many = {"items": [{"id": "m1", "vector": body["vector"], "also": both["also"]}]}
    assert client.post("/v1/items", json=many).json()["written"] == 1
    short = {"items": [{"id": "m2", "vector": body["vector"]}]}
    assert client.post("/v1/items", json=short).status_code == 422
    assert client.get("/v1/upgrade").json()["would_vanish"] == 0


def test_put_image_during_an_upgrade_writes_both_spaces(client: TestClient) -> None:
    service = service_of(client)
    old, new = (one.space for one in service.encoders.loaded)
    Upgrade.start(service.gallery, to=new, order="random")
    answer = client.put(path("both"), files={"file": encoded(33)}).json()
    assert answer["spaces"] == [new.fingerprint, old.fingerprint]
    item = client.get(path("both")).json()
    assert set(item["spaces"]) == {old.fingerprint, new.fingerprint}
    assert item["space_role"] == "new"
    stored = service.gallery.vectors(["both"], space=old.fingerprint).vectors
    assert np.allclose(stored[0], vector_of(client, 33), atol=1e-5)


def test_writes_are_in_the_audit_log_with_the_caller(client: TestClient) -> None:
    client.put(path("seen"), files={"file": encoded(1)}, headers={"x-request-id": "req-1"})
    client.delete(path("seen"))
    entries = client.get("/v1/audit").json()["entries"]
    assert [entry["what"] for entry in entries[:2]] == ["items delete", "items put"]
    assert "request req-1" in entries[1]["who"]
    assert entries[1]["details"] == {"count": 1, "first": "seen"}


def test_put_image_without_an_uploads_folder_is_409(serve: Serve, tmp_path: Path) -> None:
    client = serve()
    service_of(client).image_roots.uploads = None
    answer = client.put(path("x"), files={"file": encoded(1)})
    assert answer.status_code == 409
    assert "uploads" in answer.json()["error"]["message"]


def test_thumbnails_fit_the_box_and_keep_the_proportions(client: TestClient) -> None:
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        out = io.BytesIO()
        Image.fromarray(np.full((100, 300, 3), 120, np.uint8)).save(out, kind)
        assert client.put(path("wide"), files={"file": out.getvalue()}).status_code == 200, kind
        answer = client.get("/v1/thumbnails/wide", params={"size": 90})
        with Image.open(io.BytesIO(answer.content)) as small:
            assert small.size == (90, 30)
            assert answer.headers["content-type"] == Image.MIME[small.format or ""]
    tag = answer.headers["etag"]
    same = client.get("/v1/thumbnails/wide", params={"size": 90}, headers={"if-none-match": tag})
    assert (same.status_code, same.content) == (304, b"")


def test_only_images_in_allowed_folders_are_shown(client: TestClient, tmp_path: Path) -> None:
    outside = tmp_path / "secret.png"
    outside.write_bytes(encoded(1))
    inside = service_of(client).settings.images[0]
    (inside / "link.png").unlink(missing_ok=True)
    (inside / "link.png").symlink_to(outside)
    vector = vector_of(client, 1)
    places = {
        "outside": str(outside),
        "up": f"{inside}/../../{outside.name}",
        "dots": f"{inside}/../../../../../../../etc/hostname",
        "link": str(inside / "link.png"),
        "url": "http://127.0.0.1:9/secret.png",
        "file-url": f"file://{outside}",
        "folder": str(inside),
        "none": None,
        "long": "x" * 4000,
    }
    try:
        for id, uri in places.items():
            client.put(path(id), json={"vector": vector, "uri": uri})
            answer = client.get(f"/v1/thumbnails/{id}")
            assert answer.status_code == 404, id
            assert str(tmp_path) not in answer.text
    finally:
        (inside / "link.png").unlink()
    assert client.get("/v1/thumbnails/nobody").status_code == 404
    assert client.get("/v1/thumbnails/nobody", params={"size": 10**6}).status_code == 422


def test_uri_outside_allowed_folders_reveals_nothing_of_the_server(
    serve: Serve, tmp_path: Path
) -> None:
    there = tmp_path / "secret.png"
    there.write_bytes(encoded(1))
    client = serve()
    answers = set()
    for number, uri in enumerate((str(there), "/etc/shadow", f"{tmp_path}/nothing.png")):
        client.put(f"/v1/items/x{number}", json={"vector": [1.0] * 16, "uri": uri})
        told = client.get(f"/v1/thumbnails/x{number}")
        answers.add((told.status_code, told.json()["error"]["message"]))
    assert len(answers) == 1, answers


def test_readers_see_where_an_image_is_from_the_allowed_folder_on(serve: Serve, shop: Shop) -> None:
    tokens = Tokens({"read": {"r": "r" * 24}, "admin": {"a": "a" * 24}})
    client = serve(tokens=tokens)
    reader, admin = ({"Authorization": f"Bearer {letter * 24}"} for letter in "ra")
    client.put("/v1/items/up", files={"file": encoded(3)}, headers=admin)
    client.put("/v1/items/far", json={"vector": [1.0] * 16, "uri": "/srv/a/b.png"}, headers=admin)
    seen = {
        id: client.get(f"/v1/items/{id}", headers=reader).json()["uri"]
        for id in (name(3), "up", "far")
    }
    assert seen[name(3)] == "images/0003.png"
    assert seen["up"].startswith("shop.midspan.images/")
    assert seen["far"] == "b.png"
    whole = client.get(f"/v1/items/{name(3)}", headers=admin).json()["uri"]
    assert whole == str(shop.images / "0003.png")
    body = {"id": name(3), "k": 60}
    hits = client.post("/v1/search/item", json=body, headers=reader).json()["results"]
    assert not any((hit["uri"] or "").startswith("/") for hit in hits)


@pytest.mark.parametrize("bad", ["1.0", True, None])
def test_vector_with_strings_or_booleans_is_422(client: TestClient, bad: object) -> None:
    vector = [1.0] * 15 + [bad]
    assert client.put("/v1/items/x", json={"vector": vector}).status_code == 422
    assert client.post("/v1/search/vector", json={"vector": vector}).status_code == 422
    assert client.post("/v1/search/vector", json={"vector": [1] * 16}).status_code == 200
