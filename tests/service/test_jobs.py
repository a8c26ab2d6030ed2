from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from midspan.gallery import AuditEvent, Item
from midspan.service import jobs
from midspan.upgrade import Embed, Embedded
from tests.service.conftest import Serve
from tests.service.test_routes_search import service_of

ASYNC = {"Prefer": "respond-async"}
PATIENCE = 60.0


def begin(client: TestClient, verb: str, body: Any = None) -> str:
    answer = client.post(f"/v1/upgrade/{verb}", json=body or {}, headers=ASYNC)
    assert answer.status_code == 202, answer.text
    id: str = answer.json()["job_id"]
    assert answer.headers["location"] == f"/v1/jobs/{id}"
    return id


def ended(client: TestClient, id: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while (job := client.get(f"/v1/jobs/{id}").json())["state"] in ("queued", "running"):
        assert time.monotonic() < deadline, job
        time.sleep(0.02)
    return job


def whats(client: TestClient) -> list[str]:
    return [entry["what"] for entry in client.get("/v1/audit").json()["entries"]]


def test_failed_job_has_the_error_of_a_quick_answer(client: TestClient) -> None:
    body = {"mode": "map-gallery", "order": "random"}
    quick = client.post("/v1/upgrade/start", json=body)
    assert quick.status_code == 409
    job = ended(client, begin(client, "start", body))
    assert job["state"] == "failed"
    for name in ("type", "message"):
        assert job["error"][name] == quick.json()["error"][name]
    assert job["error"]["request_id"]
    trail = whats(client)
    assert trail.count("upgrade start refused") == 2
    assert "upgrade start" not in trail
    assert client.get("/v1/upgrade").json()["phase"] == "none"


def test_job_result_equals_the_quick_answer(client: TestClient) -> None:
    quick = client.post("/v1/upgrade/plan", json={"order": "random"}).json()
    job = ended(client, begin(client, "plan", {"order": "random"}))
    assert (job["state"], job["kind"], job["error"]) == ("done", "upgrade plan", None)
    same = ("mode", "items", "to_embed", "gate", "sample")
    assert {one: job["result"][one] for one in same} == {one: quick[one] for one in same}
    assert job["created"] <= job["started"] <= job["ended"]


def test_jobs_after_a_restart_are_listed_and_interrupted_ones_failed(serve: Serve) -> None:
    first = serve()
    failed = begin(first, "start", {"mode": "map-gallery"})
    before = ended(first, failed)
    details = {"job": "lost", "kind": "upgrade plan", "state": "running", "created": 1.0}
    service_of(first).gallery.record(AuditEvent("bob", jobs.WHAT, {**details, "error": None}))
    time.sleep(0.01)
    second = serve()
    after = second.get(f"/v1/jobs/{failed}").json()
    assert (after["state"], after["error"]) == ("failed", before["error"])
    lost = second.get("/v1/jobs/lost").json()
    assert (lost["state"], lost["error"]["type"]) == ("failed", "Interrupted")
    listed = [job["job_id"] for job in second.get("/v1/jobs").json()["jobs"]]
    assert listed == [failed, "lost"]
    assert second.get("/v1/jobs/nothing").status_code == 404


def test_job_is_found_after_many_audit_lines(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LOG", 4)
    first = serve()
    failed = begin(first, "start", {"mode": "map-gallery"})
    ended(first, failed)
    for number in range(6):
        service_of(first).gallery.record(AuditEvent("bob", "put", {"items": number}))
    assert serve().get(f"/v1/jobs/{failed}").json()["state"] == "failed"


def held_encoder(client: TestClient, monkeypatch: Any) -> tuple[threading.Event, threading.Event]:
    """(set when the encoder is asked for more than a few, held until this is set)."""
    service = service_of(client)
    plain, asked, go = service.embed_into, threading.Event(), threading.Event()

    def held(fingerprint: str | None) -> Embed | None:
        embed = plain(fingerprint)
        if embed is None:
            return None

        def slow(items: Sequence[Item]) -> Embedded:
            if len(items) > 8:
                asked.set()
                assert go.wait(PATIENCE)
            return embed(items)

        return slow

    monkeypatch.setattr(service, "embed_into", held)
    return asked, go


def test_cancelled_start_leaves_the_gallery_unchanged(client: TestClient, monkeypatch: Any) -> None:
    asked, go = held_encoder(client, monkeypatch)
    id = begin(client, "start", {"order": "random"})
    assert asked.wait(PATIENCE)
    running = client.get(f"/v1/jobs/{id}").json()
    assert (running["state"], running["progress"]["label"]) == ("running", "embed")
    assert running["progress"]["total"] > 40
    told = client.post(f"/v1/jobs/{id}/cancel", json={}).json()
    assert told["cancelling"] is True
    go.set()
    job = ended(client, id)
    assert (job["state"], job["error"]["type"]) == ("cancelled", "Cancelled")
    assert client.get("/v1/upgrade").json()["phase"] == "none"
    assert "upgrade start cancelled" in whats(client)
    assert client.post(f"/v1/jobs/{id}/cancel", json={}).status_code == 409
    assert ended(client, begin(client, "start", {"order": "random"}))["state"] == "done"


def test_quick_step_runs_while_long_steps_wait(client: TestClient, monkeypatch: Any) -> None:
    client.post("/v1/upgrade/start", json={"sample": 0, "order": "random"})
    asked, go = held_encoder(client, monkeypatch)
    gates = [begin(client, "gate") for _ in range(3)]
    try:
        assert asked.wait(PATIENCE)
        paused = client.post("/v1/upgrade/pause", json={}, headers={"Prefer": "wait=9"})
        assert (paused.status_code, paused.json()["phase"]) == (200, "paused")
    finally:
        go.set()
    assert [ended(client, id)["state"] for id in gates] == ["done"] * 3
