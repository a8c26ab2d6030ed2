from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from midspan.gallery import Gallery
from midspan.gallery.search_log import returned
from midspan.service.search_service import SearchService
from midspan.upgrade import Upgrade
from tests.service.conftest import Serve
from tests.service.shop import KINDS, encoded, name, picture


def service_of(client: TestClient) -> SearchService:
    service: SearchService = client.app.state.galleries["default"].service  # type: ignore[attr-defined]
    return service


def vector_of(client: TestClient, number: int) -> list[float]:
    loaded = service_of(client).encoders.loaded[0]
    return [float(value) for value in loaded.vectors([picture(number)])[0]]


def post(client: TestClient, path: str, body: Any) -> Any:
    answer = client.post(path, json=body)
    while answer.status_code == 202 or answer.json().get("state") in ("queued", "running"):
        time.sleep(0.1)  # on a busy machine a step becomes a job
        answer = client.get(f"/v1/jobs/{answer.json()['job_id']}")
    assert answer.status_code == 200, answer.text
    content = answer.json()
    return content["result"] if "job_id" in content else content


def test_an_uploaded_image_finds_itself_and_its_kind(shared: TestClient) -> None:
    answer = shared.post("/v1/search/image", files={"file": ("x.png", encoded(7))}, data={"k": "5"})
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert results[0]["id"] == name(7)
    assert results[0]["score"] == pytest.approx(1.0, abs=1e-4)
    assert [hit["score"] for hit in results] == sorted((h["score"] for h in results), reverse=True)
    assert results[0]["space_role"] == "live"
    assert results[0]["payload"] == {"labels": 7 % KINDS, "price": 7}
    assert shared.get(results[0]["thumbnail"]).headers["content-type"] == "image/png"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_filter_and_threshold_limit_the_results(shared: TestClient) -> None:
    data = {"k": "50", "filter": '{"price": {"$lt": 10}}', "threshold": "-1"}
    body = shared.post("/v1/search/image", files={"file": encoded(3)}, data=data).json()
    assert sorted(hit["payload"]["price"] for hit in body["results"]) == list(range(10))
    high = post(
        shared, "/v1/search/item", {"id": name(3), "k": 50, "threshold": 0.999999, "exact": True}
    )
    assert high["results"] == []


def test_search_by_vector_returns_the_hits_of_the_gallery(shared: TestClient) -> None:
    queries = [vector_of(shared, number) for number in (1, 2)]
    service = service_of(shared)
    expected = service.gallery.search(
        np.array(queries, np.float32), space=service.gallery.space, k=4, exact=True
    )
    many = post(shared, "/v1/search/vector", {"vectors": queries, "k": 4, "exact": True})
    assert [[hit["id"] for hit in hits] for hits in many["results"]] == [
        [hit.id for hit in hits] for hits in expected
    ]
    one = post(shared, "/v1/search/vector", {"vector": queries[0], "k": 4, "exact": True})
    assert one["results"] == many["results"][0]
    named = {"vector": queries[0], "k": 4, "exact": True, "space": "old"}
    assert post(shared, "/v1/search/vector", named)["results"] == one["results"]


def test_search_by_item_excludes_the_item_itself(shared: TestClient) -> None:
    body = post(shared, "/v1/search/item", {"id": name(4), "k": 59})
    ids = [hit["id"] for hit in body["results"]]
    assert name(4) not in ids
    assert len(set(ids)) == 59


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({}, 422, "either vector or vectors"),
        ({"vector": [1.0], "vectors": [[1.0]]}, 422, "either vector or vectors"),
        ({"vector": [1.0, 2.0]}, 422, "requires"),
        ({"vectors": [[1.0] * 16, [1.0]]}, 422, "different lengths"),
        ({"vector": [0.0] * 16}, 422, "length zero"),
        ({"vector": [1e39] * 16}, 422, "infinite"),
        ({"vector": [1.0] * 16, "k": 0}, 422, "k"),
        ({"vector": [1.0] * 16, "k": 10**9}, 422, "k"),
        ({"vector": [1.0] * 16, "space": "nobody"}, 409, "0 spaces are called"),
        ({"vector": [1.0] * 16, "filter": {"$and": []}}, 422, "list of filters"),
        ({"vector": [1.0] * 16, "wieght": 1}, 422, "wieght"),
        ({"vector": ["x"] * 16}, 422, "vector.0"),
    ],
)
def test_invalid_vector_searches_are_refused_with_the_reason(
    shared: TestClient, body: Any, status: int, word: str
) -> None:
    answer = shared.post("/v1/search/vector", json=body)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["error"]["message"]


def test_vectors_with_nan_are_refused(shared: TestClient) -> None:
    raw = '{"vector": [NaN, 1, 1, 1]}'
    answer = shared.post(
        "/v1/search/vector", content=raw, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422


def test_bad_uploads_are_answered_with_4xx(shared: TestClient) -> None:
    assert shared.post("/v1/search/image", json={}).status_code == 415
    assert shared.post("/v1/search/image", files={"other": b"x"}).status_code == 422
    empty = shared.post("/v1/search/image", files={"file": b""})
    assert (empty.status_code, empty.json()["error"]["type"]) == (422, "ImageError")
    text = shared.post("/v1/search/image", files={"file": b"hello"}, data={"k": "many"})
    assert text.status_code == 422
    assert shared.post("/v1/search/item", json={"id": "nobody"}).status_code == 404


def test_without_an_encoder_images_are_refused_and_vectors_not(serve: Serve) -> None:
    client = serve(encoder=None, new_encoder=None)
    answer = client.post("/v1/search/image", files={"file": encoded(1)})
    assert answer.status_code == 409
    assert "`encoder`" in answer.json()["error"]["message"]
    assert client.get("/v1/gallery").json()["image_search"] is False
    assert post(client, "/v1/search/vector", {"vector": [1.0] * 16, "k": 2})["results"]


def test_compare_returns_hits_before_and_after_with_their_flips(client: TestClient) -> None:
    refused = client.post("/v1/search/compare", json={"id": name(1)})
    assert refused.status_code == 409
    service = service_of(client)
    upgrade = Upgrade.start(service.gallery, to=service.encoders.loaded[1].space, order="random")
    upgrade.run(service.embed_into(service.encoders.loaded[1].space.fingerprint), limit=30)  # type: ignore[arg-type]
    compared = post(client, "/v1/search/compare", {"id": name(1), "k": 10})
    assert {hit["space_role"] for hit in compared["before"]} == {"old"}
    assert {hit["space_role"] for hit in compared["after"]} == {"old", "new"}
    before = [hit["id"] for hit in compared["before"]]
    after = [hit["id"] for hit in compared["after"]]
    assert name(1) not in before + after
    for flip in compared["flips"]:
        was = before.index(flip["id"]) + 1 if flip["id"] in before else None
        now = after.index(flip["id"]) + 1 if flip["id"] in after else None
        assert (flip["from"], flip["to"]) == (was, now)
        assert was != now
    changed = {flip["id"] for flip in compared["flips"]}
    same = {id for rank, id in enumerate(before) if rank < len(after) and after[rank] == id}
    assert changed == set(before + after) - same
    image = client.post("/v1/search/compare", files={"file": encoded(1)}, data={"k": "3"})
    assert image.status_code == 200
    assert image.json()["before"][0]["id"] == name(1)


def test_an_image_cannot_be_compared_without_the_old_encoder(serve: Serve) -> None:
    client = serve(encoder=None)
    service = service_of(client)
    Upgrade.start(service.gallery, to=service.encoders.loaded[0].space, order="random")
    answer = client.post("/v1/search/compare", files={"file": encoded(1)})
    assert answer.status_code == 409
    assert "`encoder`" in answer.json()["error"]["message"]
    assert client.post("/v1/search/compare", json={"id": name(1)}).status_code == 200


def image(client: TestClient, number: int, **headers: str) -> list[dict[str, Any]]:
    answer = client.post(
        "/v1/search/image", files={"file": encoded(number)}, data={"k": "8"}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    hits: list[dict[str, Any]] = answer.json()["results"]
    return hits


def start_both(client: TestClient, *, traffic: float = 1.0) -> None:
    body = {"mode": "both", "order": "random", "traffic": traffic}
    assert post(client, "/v1/upgrade/start", body)["traffic"] == traffic
    service = service_of(client)
    space = service.encoders.loaded[1].space.fingerprint
    Upgrade(service.gallery).run(service.embed_into(space), limit=30)  # type: ignore[arg-type]


def test_mode_both_embeds_an_image_with_both_encoders_and_decodes_it_once(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_both(client)
    service, decoded = service_of(client), list[Any]()
    fit = service.decoder.fit

    def watched(data: bytes, box: Any) -> Any:
        decoded.append(box)
        return fit(data, box)

    monkeypatch.setattr(service.decoder, "fit", watched)
    hits = image(client, 7)
    assert len(decoded) == 1
    vectors = [one.vectors([picture(7)]) for one in service.encoders.loaded]
    spaces = [one.space for one in service.encoders.loaded]
    expected = service.gallery.search_in(list(zip(spaces, vectors, strict=True)), k=8)[0]
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    assert {hit["space_role"] for hit in hits} == {"old", "new"}
    ranks = [hit["rank_score"] for hit in hits]
    assert ranks == sorted(ranks, reverse=True)
    body = {
        "vector": vectors[0][0].tolist(),
        "space": spaces[0].fingerprint,
        "also": [{"space": spaces[1].fingerprint, "vectors": vectors[1].tolist()}],
        "k": 8,
    }
    assert post(client, "/v1/search/vector", body)["results"] == hits


def test_traffic_splits_image_searches_and_the_status_counts_each_arm(client: TestClient) -> None:
    before = {number: [hit["id"] for hit in image(client, number)] for number in range(12)}
    start_both(client, traffic=0.0)
    assert all([h["id"] for h in image(client, n)] == before[n] for n in before), "shadow"
    assert post(client, "/v1/upgrade/traffic", {"traffic": 0.5})["traffic"] == 0.5
    ways = []
    for number in before:
        roles = {hit["space_role"] for hit in image(client, number)}
        assert image(client, number)[0]["space"] == image(client, number)[0]["space"]
        ways.append(roles == {"old"})
    assert 0 < sum(ways) < 12
    assert (
        len(
            {
                len({h["space_role"] for h in image(client, n, **{"X-Client-Id": "a"})} - {"old"})
                for n in before
            }
        )
        == 1
    ), "a client is answered one way"
    arms = client.get("/v1/upgrade").json()["arms"]
    assert arms["old"]["searches"] >= 12
    assert arms["new"]["searches"] > 0
    assert arms["new"]["p99_ms"] >= arms["new"]["p50_ms"] > 0


def test_shadow_upgrade_compares_each_image_query_with_the_new_way(client: TestClient) -> None:
    start_both(client, traffic=0.0)
    service = service_of(client)
    spaces = [one.space for one in service.encoders.loaded]
    shared, changed = [], []
    for count, number in enumerate((3, 7, 11), start=1):
        before = [hit["id"] for hit in image(client, number)]
        vectors = [one.vectors([picture(number)]) for one in service.encoders.loaded]
        asked = list(zip(spaces, vectors, strict=True))
        after = [hit.id for hit in service.gallery.search_in(asked, k=8, arm="new")[0]]
        shared.append(len(set(before) & set(after)) / len(before))
        changed.append(before[0] != after[0])
        waited = time.monotonic() + 20
        while (told := service.arms.compared()) is None or told.queries < count:
            assert time.monotonic() < waited, told
            time.sleep(0.02)
    status = client.get("/v1/upgrade").json()
    seen = status["compared"]
    assert (seen["queries"], seen["dropped"]) == (3, 0)
    assert seen["overlap"] == pytest.approx(np.mean(shared), abs=0.001)
    assert seen["first_changed"] == pytest.approx(np.mean(changed))
    assert seen["p99_ms"] >= seen["p50_ms"] > 0
    assert status["arms"]["old"]["searches"] == 3
    assert "new" not in status["arms"], "nobody was answered by it"


def test_mode_both_without_the_old_encoder_says_what_to_start(serve: Serve) -> None:
    client = serve(encoder=None)
    service = service_of(client)
    space = service.encoders.loaded[0].space
    Upgrade.start(
        service.gallery,
        to=space,
        mode="both",
        embed=service.embed_into(space.fingerprint),
        order="random",
    )
    answer = client.post("/v1/search/image", files={"file": encoded(1)})
    assert answer.status_code == 409
    assert "both `encoder` and `new_encoder`" in answer.json()["error"]["message"]


def test_returned_hits_are_recorded_in_the_gallery(serve: Serve) -> None:
    client = serve()
    service = service_of(client)
    place = service.gallery.location
    image(client, 3)
    service.log.flush()
    with Gallery.open(place) as gallery:
        counts = returned(gallery)
    assert sum(counts.values()) == 8
    assert counts[name(3)] == 1
