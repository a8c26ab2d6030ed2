from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient

from midspan.bridges import Ridge
from midspan.service import upgrade_worker
from midspan.service.quality import Flipped, Quality, _worst
from midspan.spaces import Embeddings
from midspan.upgrade import ORDERS, Upgrade
from tests.service.conftest import Serve
from tests.service.shop import Shop, encoded, name, new_vectors, picture
from tests.service.test_routes_search import service_of

PATIENCE = 120.0


def post(client: TestClient, verb: str, body: Any = None) -> Any:
    answer = client.post(f"/v1/upgrade/{verb}", json=body)
    assert answer.status_code in (200, 202), answer.text
    return answer.json()


def until(client: TestClient, good: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not good(status := client.get("/v1/upgrade").json()):
        assert time.monotonic() < deadline, status
        time.sleep(0.05)
    return status


def test_upgrade_over_http_from_start_to_forget_leaves_one_live_space(
    client: TestClient,
) -> None:
    assert client.get("/v1/gallery").json()["modes"] == ["direct", "both"]
    plan = post(client, "plan")
    assert (plan["items"], plan["to_embed"], plan["mode"]) == (60, 60, "direct")
    assert plan["gate"]["labelled"] is True
    assert client.get("/v1/upgrade").json()["phase"] == "none", "a plan writes nothing"
    for verb in ("run", "pause", "resume", "gate", "finish", "rollback"):
        refused = client.post(f"/v1/upgrade/{verb}")
        assert (verb, refused.status_code) == (verb, 409)

    started = post(client, "start", {"order": "random"})
    assert (started["phase"], started["old"], started["new"]) == ("running", 60, 0)
    assert started["job"]["wanted"] is False
    info = client.get("/v1/gallery").json()
    assert sorted(space["role"] for space in info["spaces"].values()) == ["old", "target"]
    assert info["can_upgrade"] is False
    assert (info["orders"][0], set(info["orders"])) == ("uncertainty", set(ORDERS))
    time.sleep(5 * upgrade_worker.LOOK)
    assert client.get("/v1/upgrade").json()["new"] == 0, "nobody asked for the backfill yet"
    assert client.post("/v1/upgrade/start").status_code == 409

    assert post(client, "run")["job"]["wanted"] is True
    done = until(client, lambda status: status["old"] == 0)
    assert (done["new"], done["failed"], done["all"], done["share"]) == (60, 0, 60, 1.0)
    until(client, lambda status: not status["job"]["running"])
    verdict = post(client, "gate")
    assert verdict["n_queries"] == 60
    assert [check["name"] for check in verdict["checks"]] == ["retention"]
    assert verdict["flips"]["n_queries"] == 60
    after_gate = client.get("/v1/upgrade").json()
    assert after_gate["gates"][0]["verdict"] == verdict["verdict"] == after_gate["gate"]

    curve = client.get("/v1/upgrade/curve").json()
    quality = [point for point in curve["points"] if point["metric"] == "precision@10"]
    assert quality[0]["fraction"] == 0.0
    assert quality[-1]["fraction"] == 1.0
    assert [p["fraction"] for p in quality] == sorted(p["fraction"] for p in quality)
    assert curve["baseline"]["metric"] == "precision@10"
    flips = client.get("/v1/upgrade/flips", params={"limit": 3}).json()
    assert flips["queries"] == 60
    assert all(flip["before_rank"] == 1 for flip in flips["flips"])
    restarted = Quality(service_of(client)).last_flips()  # which has only the gallery to look at
    assert [one.query_id for one in restarted.flips[:3]] == [f["query_id"] for f in flips["flips"]]
    assert (restarted.queries, restarted.labelled) == (60, flips["labelled"])

    if verdict["verdict"] != "PASS":
        refused = client.post("/v1/upgrade/finish", json={})
        assert refused.status_code == 409
        assert "expected PASS" in refused.json()["error"]["message"]
    finished = post(client, "finish", {"override": "the queries are too few to decide"})
    assert (finished["phase"], finished["would_vanish"]) == ("finished", 0)
    assert finished["override"]["reason"] == "the queries are too few to decide"
    assert client.post("/v1/upgrade/start", json={}).status_code == 409
    forgotten = post(client, "forget")
    assert forgotten["phase"] == "none"
    info = client.get("/v1/gallery").json()
    assert [space["role"] for space in info["spaces"].values()] == ["live"]
    hits = client.post("/v1/search/image", files={"file": encoded(8)}).json()["results"]
    assert hits[0]["id"] == name(8)
    assert client.get("/v1/upgrade/curve").json() == curve, "the last curve stays"
    whats = [entry["what"] for entry in client.get("/v1/audit").json()["entries"]]
    for what in ("upgrade start", "service run", "upgrade quality", "upgrade gate"):
        assert what in whats


def test_rollback_after_pause_and_resume_restores_the_old_space(client: TestClient) -> None:
    post(client, "start", {"order": "random", "sample": 0})
    post(client, "run", {"max_rate": 10.0})  # 6 s for all: time enough to pause it
    until(client, lambda status: status["new"] > 0)
    paused = post(client, "pause", {"reason": "lunch"})
    assert (paused["phase"], paused["reason"]) == ("paused", "lunch")
    until(client, lambda status: not status["job"]["running"])
    counts = client.get("/v1/upgrade").json()["new"]
    assert 0 < counts < 60
    resumed = post(client, "resume")
    assert (resumed["phase"], resumed["job"]["wanted"]) == ("running", True)
    until(client, lambda status: status["new"] > counts)
    rolled = post(client, "rollback")
    assert rolled["phase"] == "none"
    until(client, lambda status: not status["job"]["running"])
    body = client.post("/v1/search/image", files={"file": encoded(8)}, data={"k": "60"}).json()
    assert {hit["space"] for hit in body["results"]} == {service_of(client).gallery.state.live[0]}
    assert len(body["results"]) == 60


def test_unreadable_images_are_listed_as_failures_with_the_reason(serve: Serve, shop: Shop) -> None:
    client = serve()
    vector = [1.0] * 16
    for id, uri in {"gone": None, "outside": "/etc/hostname"}.items():
        client.put(f"/v1/items/{id}", json={"vector": vector, "uri": uri})
    post(client, "start", {"order": "random", "run": True, "sample": 0})
    done = until(client, lambda status: status["old"] == 0)
    assert (done["new"], done["failed"], done["all"]) == (60, 2, 62)
    page = client.get("/v1/upgrade/failures", params={"limit": 1}).json()
    assert (page["failures"][0]["id"], page["next"]) == ("gone", "gone")
    rest = client.get("/v1/upgrade/failures", params={"after": "gone"}).json()["failures"]
    assert [(one["id"], "no folder" in one["reason"]) for one in rest] == [("outside", True)]

    until(client, lambda status: not status["job"]["running"])
    Upgrade(service_of(client).gallery).pause()  # or the worker would have tried them by then
    again = post(client, "retry")
    assert (again["old"], again["failed"]) == (2, 0)
    entry = client.get("/v1/audit").json()["entries"][0]
    assert (entry["what"], entry["details"]) == ("upgrade retry", {"items": 2})
    post(client, "resume")
    assert until(client, lambda status: status["old"] == 0)["failed"] == 2
    post(client, "rollback")
    assert client.post("/v1/upgrade/retry").status_code == 409


def test_vectors_computed_elsewhere_need_no_encoder(
    serve: Serve, shop: Shop, tmp_path: Path
) -> None:
    file = new_vectors(shop).save(tmp_path / "new.npz")
    client = serve(encoder=None, new_encoder=None, new_vectors=file)
    post(client, "start", {"run": True})
    assert until(client, lambda status: status["old"] == 0)["new"] == 60


def test_configured_bridge_maps_the_gallery(serve: Serve, shop: Shop, tmp_path: Path) -> None:
    from tests.service.shop import _encoders

    pictures = [picture(n) for n in range(100, 160)]
    ids = np.arange(60).astype(np.str_)
    old, new = (
        Embeddings(ids, loaded.vectors(pictures), loaded.space)
        for loaded in _encoders(str(shop.old), str(shop.new)).loaded
    )
    folder = Ridge(alpha=0.1).fit(old, new).save(tmp_path / "bridge")
    without = serve()
    refused = without.post("/v1/upgrade/start", json={"mode": "map-gallery"})
    assert refused.status_code == 409
    assert "requires a bridge" in refused.json()["error"]["message"]
    client = serve(bridge=folder)
    started = post(client, "start", {"mode": "map-gallery", "order": "random"})
    assert (started["phase"], started["mode"]) == ("running", "map-gallery")
    info = client.get("/v1/gallery").json()
    assert sorted(s["role"] for s in info["spaces"].values()) == ["mapped", "old", "target"]
    hits = client.post("/v1/search/item", json={"id": name(2), "k": 59}).json()["results"]
    assert len({hit["id"] for hit in hits}) == 59
    assert {hit["space_role"] for hit in hits} == {"old"}
    image = client.post("/v1/search/image", files={"file": encoded(2)}).json()["results"]
    assert image[0]["payload"]["labels"] == 2


def test_a_client_cannot_name_a_folder_of_the_server(client: TestClient) -> None:
    answer = client.post("/v1/upgrade/start", json={"mode": "map-query", "bridge": "/etc"})
    assert answer.status_code == 422


def test_unknown_order_is_422(client: TestClient) -> None:
    refused = client.post("/v1/upgrade/start", json={"order": "nonsense"})
    assert refused.status_code == 422
    assert "uncertainty" in refused.json()["error"]["message"]
    document = client.get("/openapi.json").json()
    described = document["components"]["schemas"]["UpgradeStart"]["properties"]["order"]
    assert {"type": "string", "enum": list(ORDERS)} in described["anyOf"]


def test_start_without_a_new_encoder_is_refused(serve: Serve) -> None:
    client = serve(new_encoder=None)
    assert client.get("/v1/gallery").json()["can_upgrade"] is False
    for verb in ("plan", "start"):
        answer = client.post(f"/v1/upgrade/{verb}")
        assert answer.status_code == 409
        assert "`new_encoder`" in answer.json()["error"]["message"]


def test_audit_log_keeps_the_worst_flips_within_its_size_limit() -> None:
    def flip(number: int, size: int) -> Flipped:
        return Flipped(f"{number:04}" + "q" * size, ("a",), ("b",), 1, None, ())

    many = [flip(number, 100) for number in range(1000)]
    kept = list(_worst(many))
    assert kept == many[: len(kept)]
    assert 140 <= len(kept) <= 160
    assert list(_worst([flip(1, 20_000)])) == []
