from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.service.shop import KINDS, encoded, name
from tests.service.test_routes_search import vector_of


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["results"]]


def test_search_route_accepts_image_vector_or_item_id(shared: TestClient) -> None:
    form = shared.post("/v1/search", files={"file": encoded(8)}, data={"limit": "5"})
    sent = {"image": base64.b64encode(encoded(8)).decode(), "limit": 5}
    assert ids(form) == ids(shared.post("/v1/search", json=sent))
    assert ids(form)[0] == name(8)
    by_id = shared.post("/v1/search", json={"id": name(8), "limit": 5})
    assert ids(by_id) == ids(shared.post("/v1/search/item", json={"id": name(8), "k": 5}))
    vector = {"vector": vector_of(shared, 8), "limit": 5}
    assert ids(shared.post("/v1/search", json=vector))[0] == name(8)
    for bad in (
        {},
        {"id": "a", "vector": [1.0]},
        {"image": "no base64!"},
        {"id": "a", "space": "b"},
    ):
        assert shared.post("/v1/search", json=bad).status_code == 422


def test_limit_score_threshold_with_payload_and_with_vectors_are_honoured(
    shared: TestClient,
) -> None:
    body = {"id": name(8), "limit": 20, "score_threshold": 0.9}
    usual = shared.post("/v1/search", json=body).json()["results"]
    ours = shared.post("/v1/search/item", json={"id": name(8), "k": 20, "threshold": 0.9}).json()
    assert [hit["id"] for hit in usual] == [hit["id"] for hit in ours["results"]]
    assert all(hit["payload"] and hit["vector"] is None for hit in usual)
    bare = {"id": name(8), "limit": 3, "with_payload": False, "with_vectors": True}
    for hit in shared.post("/v1/search", json=bare).json()["results"]:
        assert hit["payload"] == {}
        stored = shared.get(f"/v1/vectors/{hit['id']}").json()
        assert (hit["space"], hit["vector"]) == (stored["space"], stored["vector"])
    for both in ({"k": 3, "limit": 3}, {"threshold": 0.1, "score_threshold": 0.1}):
        assert shared.post("/v1/search", json={"id": name(8), **both}).status_code == 422


def test_stored_vector_is_returned_as_json_and_as_bytes(shared: TestClient) -> None:
    told = shared.get(f"/v1/vectors/{name(3)}").json()
    raw = shared.get(f"/v1/vectors/{name(3)}", headers={"Accept": "application/octet-stream"})
    assert np.allclose(np.frombuffer(raw.content, "<f4"), told["vector"])
    assert raw.headers["x-space"] == told["space"]
    assert shared.get("/v1/vectors/nobody").status_code == 404
    assert shared.get(f"/v1/vectors/{name(3)}", params={"space": "x"}).status_code == 409


def test_item_vector_path_returns_the_stored_vector(client: TestClient) -> None:
    plain = client.get(f"/v1/vectors/{name(4)}").json()
    assert client.get(f"/v1/items/{name(4)}/vector").json() == plain
    assert client.get("/v1/items/no-such/vector").status_code == 404
    body = {"vector": plain["vector"], "payload": {"a": 1}}
    assert client.put("/v1/items/odd/vector", json=body).status_code == 200
    assert client.get("/v1/items/odd/vector").json()["payload"] == {"a": 1}
    assert client.get("/v1/vectors/odd/vector").json()["vector"] == plain["vector"]


def test_facets_count_values_of_matching_items(shared: TestClient) -> None:
    answer = shared.post("/v1/facets", json={"fields": ["labels", "nothing"]}).json()
    assert (answer["items"], answer["complete"], answer["facets"]["nothing"]) == (60, True, [])
    counts = {one["value"]: one["count"] for one in answer["facets"]["labels"]}
    assert counts == dict.fromkeys(range(KINDS), 10)
    body = {"fields": ["labels"], "filter": {"price": {"$lt": 8}}, "limit": 2}
    some = shared.post("/v1/facets", json=body).json()
    assert some["items"] == 8
    assert some["facets"]["labels"] == [{"value": 0, "count": 2}, {"value": 1, "count": 2}]
    assert shared.post("/v1/facets", json={}).json()["items"] == 60


def test_items_contains_matches_parts_of_id_and_payload(shared: TestClient) -> None:
    page = shared.get("/v1/items", params={"contains": "KIND3", "limit": 4}).json()
    rest = shared.get("/v1/items", params={"contains": "kind3", "after": page["next"]}).json()
    seen = [item["id"] for item in (*page["items"], *rest["items"])]
    assert seen == sorted(name(number) for number in range(3, 60, KINDS))
    assert rest["next"] is None
    by_value = shared.get("/v1/items", params={"contains": "57"}).json()["items"]
    assert {item["payload"]["price"] for item in by_value} == {57}


def test_patch_merges_and_put_replaces_the_payload(client: TestClient) -> None:
    path = f"/v1/items/{name(3)}"
    merged = client.patch(path, json={"payload": {"brand": "acme", "price": None}}).json()
    assert merged["payload"] == {"labels": 3, "brand": "acme"}
    assert client.put(path, json={"payload": {"only": 1}}).status_code == 200
    item = client.get(path).json()
    assert (item["payload"], bool(item["spaces"])) == ({"only": 1}, True)
    assert client.put("/v1/items/nobody", json={"payload": {}}).status_code == 404
    assert client.put(path, json={"payload": {}, "uri": "x"}).status_code == 422


def test_duplicates_groups_near_identical_items(client: TestClient) -> None:
    vector = vector_of(client, 5)
    moved = (np.array(vector) + 1e-4).tolist()
    for id, one in {"copy/a": vector, "copy/b": moved}.items():
        client.put(f"/v1/items/{id}", json={"vector": one})
    body = client.post("/v1/duplicates", json={"threshold": 0.99999}).json()
    assert body["items"] == 62
    [group] = [group for group in body["groups"] if "copy/a" in group["ids"]]
    assert group["ids"] == ["copy/a", "copy/b", name(5)]
    assert group["score"] == pytest.approx(1.0, abs=1e-5)


def test_openapi_operation_ids_are_unique_and_statuses_are_of_the_route(shared: TestClient) -> None:
    document = shared.get("/openapi.json").json()
    operations = [one for path in document["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
    tags = {tag["name"] for tag in document["tags"]}
    assert {tag for one in operations for tag in one["tags"]} == tags
    health = document["paths"]["/healthz"]["get"]["responses"]
    assert set(health) == {"200", "400", "403"}
    assert "202" in document["paths"]["/v1/upgrade/plan"]["post"]["responses"]
    assert "<title>API" in shared.get("/docs").text
