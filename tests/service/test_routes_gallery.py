from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from midspan.gallery import AuditEvent, Gallery
from midspan.gallery.engines.base import IndexStatus
from midspan.service.routes_gallery import load_page
from tests.service.conftest import Serve
from tests.service.test_routes_search import service_of


def test_gallery_info_matches_the_stored_items(shared: TestClient) -> None:
    info = shared.get("/v1/gallery").json()
    state = service_of(shared).gallery.state
    live = state.live[0]
    assert (info["items"], info["failed"], info["by_space"]) == (60, 0, {live: 60})
    assert info["spaces"][live] == {
        "name": "old",
        "dim": 16,
        "metric": "cosine",
        "role": "live",
        "encoder": True,
    }
    assert (info["location_kind"], info["upgrade"]) == ("embedded", None)
    assert info["payload_keys"] == ["labels", "price"]
    assert service_of(shared).gallery.location not in json.dumps(info)


def test_verify_healthz_and_readyz_report_a_good_gallery(shared: TestClient) -> None:
    verified = shared.get("/v1/gallery/verify").json()
    assert (verified["ok"], verified["items"]) == (True, 60)
    assert shared.get("/healthz").json() == {"status": "ok"}
    assert shared.get("/readyz").json() == {"status": "ready"}


def test_readyz_of_a_closed_gallery_is_503(serve: Serve) -> None:
    client = serve()
    service_of(client).gallery.close()
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


def values(client: TestClient) -> dict[str, float]:
    """Of all metrics, by their name and labels."""
    lines = client.get("/metrics").text.splitlines()
    return {
        name: float(value) for name, value in (one.rsplit(" ", 1) for one in lines if one[0] != "#")
    }


def test_first_metrics_know_the_lag_of_a_backfill_and_lost_leases(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(client)
    for _ in range(2):
        service.gallery.record(AuditEvent("ray", "upgrade worker lost", {"items": 8}))
    assert client.post("/v1/upgrade/start", json={"sample": 0, "order": "random"}).status_code < 300
    now = time.time()
    monkeypatch.setattr("midspan.service.status_reporter.time.time", lambda: now + 3600)
    first = values(client)
    assert first['midspan_lease_losses{gallery="default"}'] == 2
    assert 3590 < first['midspan_backfill_lag_seconds{gallery="default"}'] < 3700
    service.gallery.record(
        AuditEvent("w", "upgrade run", {"worker": "w", "written": 1, "seconds": 1.0, "given_up": 0})
    )
    assert values(client)['midspan_backfill_lag_seconds{gallery="default"}'] <= 3601


def test_first_metrics_know_the_age_of_an_index_that_lacks_vectors(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    unindexed = [7]

    def index_status(gallery: Gallery) -> dict[str, IndexStatus]:
        return {gallery.space.fingerprint: IndexStatus(60, "ivf", "building", unindexed[0])}

    monkeypatch.setattr(Gallery, "index_status", index_status)
    client, name = serve(), 'midspan_index_age_seconds{gallery="default",space="old"}'
    time.sleep(0.2)
    assert values(client)[name] >= 0.1, "it began before anybody asked"
    unindexed[0] = 0
    assert values(client)[name] == 0


def test_metrics_of_a_gallery_too_small_for_an_index_have_no_age(shared: TestClient) -> None:
    time.sleep(0.05)
    found = values(shared)
    assert found['midspan_index_unindexed_rows{gallery="default",space="old"}'] == 60
    assert found['midspan_index_age_seconds{gallery="default",space="old"}'] == 0


def test_metrics_count_requests_items_and_queues(shared: TestClient) -> None:
    shared.post("/v1/search/item", json={"id": "kind0/0000"})
    shared.post("/v1/search/item", json={"id": "nobody"})
    answer = shared.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    for expected in (
        'midspan_items{gallery="default",space="old"} 60.0',
        'midspan_upgrade_phase{gallery="default",phase="none"} 1.0',
        'midspan_gate{gallery="default",verdict="FAIL"} 0.0',
        'midspan_backfill_rate{gallery="default"} 0.0',
        'midspan_queue_depth{queue="write"} 0.0',
    ):
        assert expected in lines
    route = 'method="POST",route="/v1/search/item"'
    assert any(f"midspan_request_seconds_count{{{route}}}" in line for line in lines)
    assert any(f'midspan_requests_total{{{route},status="404"}}' in line for line in lines)
    assert "nobody" not in answer.text, "what clients send must not become labels"
    shared.get("/v1/items/some-very-special-name")
    assert "some-very-special-name" not in shared.get("/metrics").text


def test_page_serves_only_its_own_files(shared: TestClient, tmp_path: Path) -> None:
    page = load_page()
    answer = shared.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    for name, (content, kind) in page.items():
        served = shared.get(f"/page/{name}")
        assert (served.content, served.headers["content-type"]) == (content, kind)
    for evil in ("..%2Fapp.py", "app.py", "%2e%2e", "index.html%00", "nothing.js", "a%2Fb.js"):
        assert shared.get(f"/page/{evil}").status_code in (400, 404)
    (tmp_path / "x.js").write_text("1")
    (tmp_path / "secret.toml").write_text("1")
    (tmp_path / "deep.js").mkdir()
    assert set(load_page(tmp_path)) == {"x.js"}
    assert load_page(tmp_path / "nothing") == {}


def test_openapi_describes_every_route_with_its_bodies(shared: TestClient) -> None:
    from midspan.service.routes import TABLE

    document = shared.get("/openapi.json").json()
    for route in TABLE:
        operation = document["paths"][route.path.replace(":path}", "}")][route.method.lower()]
        assert ("requestBody" in operation) == (route.takes is not None or route.form is not None)
        assert ("security" in operation) == (route.role != "open")
        assert operation["summary"]
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
