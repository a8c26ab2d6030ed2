"""Images inside tar shards: shown and embedded by the rules for files, and by no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from midspan.gallery import Item
from tests.data.shards import write_shard
from tests.service.conftest import Serve
from tests.service.shop import QUICK, Shop, encoded, new_vectors
from tests.service.test_routes_items import path
from tests.service.test_routes_search import service_of, vector_of


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIDSPAN_CACHE", str(tmp_path / "cache"))
    entries = {f"c#{number}/{number}.png": encoded(number) for number in range(3)}
    write_shard(tmp_path / "shards" / "a.tar", {**entries, "note.png": b"\x89PNG\r\n\x1a\n no"})
    write_shard(tmp_path / "secret.tar", {"1.png": encoded(1)})
    return tmp_path / "shards"


def put(client: TestClient, places: dict[str, str | None]) -> None:
    vector = vector_of(client, 1)
    for id, uri in places.items():
        assert client.put(path(id), json={"vector": vector, "uri": uri}).status_code == 200


def test_shard_thumbnails_and_pixels_equal_those_of_the_file(
    serve: Serve, shop: Shop, shards: Path
) -> None:
    client = serve(images=(shards, shop.images))
    put(client, {"shard": f"{shards}/a.tar#c#1/1.png", "file": str(shop.images / "0001.png")})
    shown = [client.get(client.get(path(id)).json()["thumbnail"]) for id in ("shard", "file")]
    assert [one.status_code for one in shown] == [200, 200]
    assert shown[0].content == shown[1].content

    service = service_of(client)
    truth = new_vectors(shop, count=3)
    embed = service.embed_into(truth.space.fingerprint)
    assert embed is not None
    uris = {f"{n}": f"{shards}/a.tar#c#{n}/{n}.png" for n in range(3)}
    uris |= {"broken": f"{shards}/a.tar#note.png", "gone": f"{shards}/b.tar#1.png"}
    uris |= {"other": f"{shards}/a.tar#3.png"}
    made = embed([Item(id, uri, {}, 1, 0.0, 0.0, ()) for id, uri in uris.items()])
    assert made.vectors.ids.tolist() == ["0", "1", "2"]
    np.testing.assert_allclose(made.vectors.vectors, truth.vectors, atol=1e-5)
    assert set(made.failed) == {"gone"}  # it may come back
    assert set(made.hopeless) == {"broken", "other"}


def test_uri_outside_the_shards_is_not_opened(serve: Serve, shards: Path, tmp_path: Path) -> None:
    client = serve(images=(shards,))
    (shards / "link.tar").symlink_to(tmp_path / "secret.tar")
    (shards / "cut.tar").write_bytes((shards / "a.tar").read_bytes()[:700])
    (shards / "folder.tar").mkdir()
    (shards / "cut.npz").write_bytes(b"PK\x03\x04")
    (shards / "1.png").write_bytes(encoded(1))
    places: dict[str, str | None] = {
        "outside": f"{tmp_path}/secret.tar#1.png",
        "up": f"{shards}/../secret.tar#1.png",
        "link": f"{shards}/link.tar#1.png",
        "climbs": f"{shards}/a.tar#../1.png",
        "absolute": f"{shards}/a.tar#{shards}/1.png",
        "unknown": f"{shards}/a.tar#9.png",
        "no name": f"{shards}/a.tar#",
        "whole": f"{shards}/a.tar",
        "cut": f"{shards}/cut.tar#c#0/0.png",
        "folder": f"{shards}/folder.tar#1.png",
        "gone": f"{shards}/gone.tar#1.png",
        "url": "http://127.0.0.1:9/a.tar#1.png",
        "file-url": f"file://{shards}/a.tar#c#1/1.png",
        "broken": f"{shards}/a.tar#note.png",
        "set": f"{shards}/cut.npz#0",
    }
    put(client, places)
    for id in places:
        answer = client.get(f"/v1/thumbnails/{id}")
        assert answer.status_code == 404, id
        assert str(tmp_path) not in answer.text


def test_image_in_a_shard_beyond_the_byte_limit_is_refused(serve: Serve, shards: Path) -> None:
    most = len(encoded(1))
    write_shard(shards / "b.tar", {"1.png": encoded(1), "2.png": encoded(1) + b"\0"})
    client = serve(images=(shards,), limits=replace(QUICK, image_bytes=most))
    put(client, {"small": f"{shards}/b.tar#1.png", "large": f"{shards}/b.tar#2.png"})
    assert client.get("/v1/thumbnails/small").status_code == 200
    large = client.get("/v1/thumbnails/large")
    assert (large.status_code, f"more than {most:,}" in large.text) == (404, True)
