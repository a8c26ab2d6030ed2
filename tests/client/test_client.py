"""Every verb against the real service."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import midspan
from midspan.client import Client, Item
from midspan.errors import (
    GalleryError,
    ImageError,
    ItemError,
    MidspanError,
    RequestError,
    SpaceMismatch,
    UnknownId,
    Unreachable,
    VectorError,
)
from midspan.service.routes import TABLE
from midspan.spaces import Embeddings, Space
from tests.client.conftest import ADMIN, READ
from tests.client.servers import Reply, Stub, Watched
from tests.service.shop import Shop, encoded, name, new_vectors

PAGE = {("GET", "/"), ("GET", "/page/{name}"), ("GET", "/docs")}  # for browsers
ANY_QUERY = {  # the client asks by the kind of its query, and for vectors where ids are plain
    ("POST", "/v1/search"),
    ("GET", "/v1/items/{id:path}/vector"),
}
PATIENCE = 60.0

VERBS: dict[tuple[str, str], Callable[[Client], object]] = {
    ("GET", "/healthz"): Client.health,
    ("GET", "/readyz"): Client.ready,
    ("GET", "/metrics"): Client.metrics,
    ("GET", "/v1/galleries"): Client.galleries,
    ("GET", "/v1/gallery"): Client.info,
    ("GET", "/v1/gallery/verify"): Client.verify,
    ("GET", "/v1/audit"): Client.audit,
    ("GET", "/v1/events"): lambda client: next(client.events()),
    ("GET", "/v1/vectors/{id:path}"): lambda client: client.explore.vector(name(3)),
    ("POST", "/v1/facets"): lambda client: client.explore.facets("labels"),
    ("POST", "/v1/duplicates"): lambda client: client.explore.duplicates(),
    ("POST", "/v1/search/vector"): lambda client: client.search(vector=[1.0] * 16),
    ("POST", "/v1/search/item"): lambda client: client.search(id=name(3)),
    ("POST", "/v1/search/image"): lambda client: client.search(image=encoded(3)),
    ("POST", "/v1/search/compare"): lambda client: client.compare(id=name(3)),
    ("GET", "/v1/items"): lambda client: next(client.items()),
    ("POST", "/v1/items"): lambda client: client.add(_embeddings(client, "new")),
    ("GET", "/v1/items/{id:path}"): lambda client: client.get(name(3)),
    ("PUT", "/v1/items/{id:path}"): lambda client: client.put("new/1", image=encoded(3)),
    ("PATCH", "/v1/items/{id:path}"): lambda client: client.set_payload(name(3), {"a": 1}),
    ("DELETE", "/v1/items/{id:path}"): lambda client: client.delete(name(3)),
    ("GET", "/v1/thumbnails/{id:path}"): lambda client: client.thumbnail(name(4)),
    ("GET", "/v1/jobs"): lambda client: client.jobs.list(),
    ("GET", "/v1/jobs/{job_id}"): lambda client: client.jobs.get("nothing"),
    ("POST", "/v1/jobs/{job_id}/cancel"): lambda client: client.jobs.cancel("nothing"),
    ("GET", "/v1/upgrade"): lambda client: client.upgrade.status(),
    ("GET", "/v1/upgrade/curve"): lambda client: client.upgrade.curve(),
    ("GET", "/v1/upgrade/flips"): lambda client: client.upgrade.flips(),
    ("GET", "/v1/upgrade/failures"): lambda client: list(client.upgrade.failures()),
    ("POST", "/v1/upgrade/plan"): lambda client: client.upgrade.plan(order="random"),
    ("POST", "/v1/upgrade/start"): lambda client: client.upgrade.start(order="random"),
    ("POST", "/v1/upgrade/traffic"): lambda client: client.upgrade.traffic(0.5),
    ("POST", "/v1/upgrade/run"): lambda client: client.upgrade.run(max_rate=1.0),
    ("POST", "/v1/upgrade/pause"): lambda client: client.upgrade.pause(reason="lunch"),
    ("POST", "/v1/upgrade/resume"): lambda client: client.upgrade.resume(),
    ("POST", "/v1/upgrade/retry"): lambda client: client.upgrade.retry(),
    ("POST", "/v1/upgrade/gate"): lambda client: client.upgrade.gate(),
    ("POST", "/v1/upgrade/finish"): lambda client: client.upgrade.finish(),
    ("POST", "/v1/upgrade/forget"): lambda client: client.upgrade.forget(),
    ("POST", "/v1/upgrade/rollback"): lambda client: client.upgrade.rollback(),
}
NOT_NOW = {  # without an upgrade, or before it is done; and without a job
    ("GET", "/v1/jobs/{job_id}"),
    ("POST", "/v1/jobs/{job_id}/cancel"),
    ("POST", "/v1/search/compare"),
    ("POST", "/v1/upgrade/finish"),
    ("POST", "/v1/upgrade/forget"),
}


def _embeddings(client: Client, *ids: str) -> Embeddings:
    [(fingerprint, info)] = client.info().spaces.items()
    rng = np.random.default_rng(len(ids))
    vectors = rng.standard_normal((len(ids), info.dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    space = Space(name=info.name, dim=info.dim, fingerprint=fingerprint)
    return Embeddings(np.array(ids), vectors, space)


def test_every_route_has_a_verb(service: tuple[Watched, str], client: Client) -> None:
    assert set(VERBS) == {route.key for route in TABLE} - PAGE - ANY_QUERY, (
        "a new route wants a verb here"
    )
    watched, _ = service
    for key, verb in VERBS.items():
        if key in NOT_NOW:
            with pytest.raises(MidspanError):
                verb(client)
        else:
            verb(client)
        assert watched.seen[-1] == key
    described = client.openapi()["paths"]
    assert len(described) == len({path for _, path in VERBS}) + len(PAGE) + len(ANY_QUERY)


def test_importing_the_client_loads_no_heavy_packages() -> None:
    heavy = "['torch', 'fastapi', 'httpx', 'sqlite3', 'faiss', 'midspan.gallery', 'pydantic']"
    code = f"import sys, midspan; midspan.Client; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert midspan.Client is Client


def test_client_waits_for_long_steps_and_raises_their_error(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("midspan.service.routes_jobs.PATIENCE", 0.0)
    with pytest.raises(MidspanError, match="bridge"):
        client.upgrade.start(mode="map-gallery")
    assert client.upgrade.plan(order="random").items == 60
    job = client.upgrade.begin("start", {"order": "random"})
    assert client.jobs.wait(job.job_id, timeout=PATIENCE).kind == "upgrade start"
    assert client.upgrade.status().phase == "running"
    assert {one.state for one in client.jobs.list()} == {"done", "failed"}


def test_search_by_image_id_and_vector_returns_nearest_items(
    client: Client, shop: Shop, tmp_path: Path
) -> None:
    file = tmp_path / "query.png"
    file.write_bytes(encoded(7))
    for image in (file, str(file), encoded(7)):
        hits = client.search(image=image, k=5)
        assert len(hits) == 5
        assert (hits[0].id, hits[0].space_role, hits[0].payload["price"]) == (name(7), "live", 7)
        assert hits[0].score == pytest.approx(1.0, abs=1e-4)
    alike = client.search(id=name(7), k=3, filter={"price": {"$lt": 20}}, exact=True)
    assert name(7) not in [hit.id for hit in alike]
    assert all(hit.payload["price"] < 20 for hit in alike)
    assert client.search(id=name(7), threshold=1.5) == ()
    from_image = client.search(image=encoded(7), k=2, filter={"price": {"$gt": 40}}, threshold=-1.0)
    assert all(hit.payload["price"] > 40 for hit in from_image)
    asked = _embeddings(client, "a", "b", "c")
    many = client.search_many(asked, k=4)
    assert [len(hits) for hits in many] == [4, 4, 4]
    for row, hits in zip(asked.vectors, many, strict=True):
        assert [hit.id for hit in client.search(vector=row, k=4)] == [hit.id for hit in hits]
        assert client.search(vector=row.tolist(), k=1)[0].id == hits[0].id
    with pytest.raises(FrozenInstanceError):
        hits[0].id = "x"  # type: ignore[misc]


def test_refused_calls_raise_errors_with_the_reason(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ItemError, match="one of image=, id=, vector= and text="):
        client.search(id="a", vector=[1.0])
    with pytest.raises(ItemError, match="either image= or id="):
        client.compare()
    with pytest.raises(ItemError, match="either image= or vector="):
        client.put("a")
    with pytest.raises(ItemError, match="go with vector="):
        client.put("a", image=b"x", uri="y")
    with pytest.raises(ImageError, match=r"nothing\.png: the image cannot be read"):
        client.search(image=tmp_path / "nothing.png")
    with pytest.raises(ItemError, match="cannot be sent as JSON"):
        client.search(vector=[float("nan")] * 16)
    with pytest.raises(ImageError):
        client.search(image=b"this is no image")
    with pytest.raises(UnknownId, match="nobody"):
        client.get("nobody")
    with pytest.raises(VectorError, match="16"):
        client.search(vector=[1.0, 2.0])
    with pytest.raises(SpaceMismatch, match="elsewhere"):
        client.search(vector=[1.0] * 16, space="elsewhere")
    with pytest.raises(RequestError, match="k") as refused:
        client.search(id=name(1), k=0)
    assert (refused.value.status, refused.value.kind) == (422, "InvalidRequest")
    with pytest.raises(RequestError, match="no upgrade is open") as refused:
        client.compare(image=encoded(1))
    assert (refused.value.status, refused.value.kind) == (409, "NotPossible")


def test_read_token_cannot_write_and_no_token_cannot_read(service: tuple[Watched, str]) -> None:
    _, url = service
    with Client(url, READ) as reader:
        assert reader.info().items == 60
        with pytest.raises(RequestError, match="admin token") as refused:
            reader.delete(name(1))
        assert refused.value.status == 403
    with Client(url) as nobody:
        assert nobody.ready() is True
        with pytest.raises(RequestError, match="requires a token") as refused:
            nobody.info()
        assert refused.value.status == 401


def test_items_are_put_changed_listed_and_deleted(client: Client) -> None:
    items = list(client.items(page=7))
    assert [item.id for item in items] == sorted(name(n) for n in range(60))
    assert {item.space_role for item in items} == {"live"}
    cheap = list(client.items(filter={"price": {"$lt": 5}}, page=2))
    assert sorted(item.payload["price"] for item in cheap) == [0, 1, 2, 3, 4]

    written = client.put("a/b c", image=encoded(9), payload={"labels": 3, "price": 99})
    assert (written.written, len(written.spaces)) == (1, 1)
    item = client.get("a/b c")
    assert (item.payload["price"], item.spaces) == (99, written.spaces)
    assert client.thumbnail("a/b c", size=32)[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0")
    assert client.search(image=encoded(9), k=2)[0].score == pytest.approx(1.0, abs=1e-4)
    assert client.set_payload("a/b c", {"price": 1, "x": 2}).payload == {
        **item.payload,
        "price": 1,
        "x": 2,
    }
    with pytest.warns(DeprecationWarning, match=r"Client\.annotate is now Client\.set_payload"):
        assert client.annotate("a/b c", {"x": 3}).payload["x"] == 3
    assert client.explore.replace_payload("a/b c", {"price": 1}).written == 1
    assert client.get("a/b c").payload == {"price": 1}
    assert [one.id for one in client.explore.containing("B C")] == ["a/b c"]

    more = _embeddings(client, *(f"more/{n}" for n in range(5)))
    payloads: list[dict[str, Any]] = [{"n": n} for n in range(5)]
    assert client.add(more, payloads=payloads, uris=["file:x", *[None] * 4]) == 5
    assert (client.get("more/0").uri, client.get("more/3").payload) == ("file:x", {"n": 3})
    assert client.search(vector=more.vectors[2], k=1)[0].id == "more/2"
    with pytest.raises(GalleryError, match="more/"):
        client.add(more)
    assert client.replace(more[:2]) == 2
    assert client.get("more/1").payload == {}
    with pytest.raises(ItemError, match="'nobody'; add them"):
        client.replace(_embeddings(client, "nobody"))
    client.put("one", vector=more.vectors[0].tolist(), payload={"x": 1}, uri="file:y")
    assert client.get("one").uri == "file:y"
    with pytest.raises(ItemError, match="4 payloads for 5 items"):
        client.add(more, payloads=payloads[:4])

    assert client.delete("a/b c") is True
    assert client.delete("a/b c") is False
    info, verified = client.info(), client.verify()
    assert (info.items, verified.items, verified.ok) == (66, 66, True)
    assert sum(info.by_space.values()) == 66
    trail = client.audit(limit=3)
    assert (trail[0].what, trail[0].details["first"]) == ("items delete", "a/b c")
    assert trail[0].who.startswith("alice from 127.0.0.1")


def test_many_items_go_in_several_requests(
    service: tuple[Watched, str], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, _ = service
    many = _embeddings(client, *(f"m{n:04d}" for n in range(50)))
    monkeypatch.setattr("midspan.client.chunks.LARGEST_WRITE", 20)
    watched.keys.clear()
    assert client.add(many) == 50
    assert len(watched.keys) == len(set(watched.keys)) == 3
    monkeypatch.setattr("midspan.client.chunks.LARGEST_BODY", 2000)
    watched.keys.clear()
    assert client.replace(many) == 50
    assert len(watched.keys) > 5
    assert client.info().items == 110


@pytest.mark.slow
def test_a_write_that_is_answered_late_is_done_once(service: tuple[Watched, str]) -> None:
    watched, url = service
    with Client(url, ADMIN, timeout=2.0, retries=3) as client:
        embeddings = _embeddings(client, "once")
        watched.keys.clear()
        watched.late = 3.0
        assert client.add(embeddings) == 1, "done twice, the second would be refused"
        assert len(watched.keys) >= 2
        assert len(set(watched.keys)) == 1
        trail = [entry for entry in client.audit() if entry.details.get("first") == "once"]
        assert len(trail) == 1


@pytest.mark.slow
def test_items_and_queries_in_both_spaces_of_an_upgrade(client: Client, shop: Shop) -> None:
    client.upgrade.start(mode="both", order="random", sample=30)
    spaces = client.info().spaces
    by_role = {one.role: key for key, one in spaces.items()}
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((2, 2, 16)).astype(np.float32)
    old, new = (
        Embeddings(np.array(["a", "b"]), part, Space(spaces[key].name, 16, fingerprint=key))
        for part, key in zip(rows, (by_role["old"], by_role["target"]), strict=True)
    )
    with pytest.raises(ItemError, match="promises a rollback"):
        client.add(new)
    assert client.add(new, also=[old]) == 2
    assert set(client.get("a").spaces) == {by_role["old"], by_role["target"]}
    assert client.replace(new, also=[old]) == 2
    named = {by_role["old"]: old.vectors[0]}
    target = by_role["target"]
    assert len(client.put("c", vector=new.vectors[0], space=target, also=named).spaces) == 2
    nearest = client.search(vector=new.vectors[0], space=target, also=named, k=3)
    assert {hit.id for hit in nearest[:2]} == {"a", "c"}
    assert [hits[0].id for hits in client.search_many(new, also=old, k=1)][1] == "b"
    with pytest.raises(ItemError, match="'b', which is not among the items"):
        client.add(new[[0]], also=[old])
    with pytest.raises(ItemError, match="go with vector="):
        client.put("d", image=encoded(1), also=named)


@pytest.mark.slow
def test_upgrade_from_plan_to_forget_ends_in_one_space(client: Client, shop: Shop) -> None:
    seen: list[str] = []
    listening = threading.Event()

    def listen() -> None:
        for event in client.events():
            listening.set()
            if event.name == "upgrade":
                seen.append(event.data["phase"])
            if "running" in seen and seen[-1] == "none":
                return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert listening.wait(PATIENCE)
    upgrade = client.upgrade
    plan = upgrade.plan(order="random")
    assert (plan.items, plan.to_embed, plan.mode, plan.order) == (60, 60, "direct", "random")
    assert upgrade.status().phase == "none"
    with pytest.raises(RequestError, match="begin with"):
        upgrade.run()
    started = upgrade.start(order="random", sample=0)
    assert (started.phase, started.old, started.new, started.all) == ("running", 60, 0, 60)
    deadline = time.monotonic() + PATIENCE
    while "running" not in seen:  # the stream tells how things are, not each step on the way
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)
    compared = client.compare(id=name(7), k=5)
    assert len(compared.before) == len(compared.after) == 5
    moved = {one.id: (one.before, one.after) for one in compared.flips}
    before = {hit.id: rank for rank, hit in enumerate(compared.before, start=1)}
    after = {hit.id: rank for rank, hit in enumerate(compared.after, start=1)}
    assert moved == {
        id: (before.get(id), after.get(id))
        for id in {*before, *after}
        if before.get(id) != after.get(id)
    }
    assert len(client.compare(image=encoded(7), k=4).after) == 4
    assert upgrade.pause(reason="lunch").phase == "paused"
    assert upgrade.status().reason == "lunch"
    assert upgrade.resume().phase == "running"
    upgrade.run()
    deadline = time.monotonic() + PATIENCE
    while (status := upgrade.status()).old or status.job.running:
        assert status.old + status.new + status.failed == status.all
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert (status.new, status.share, list(upgrade.failures())) == (60, 1.0, [])
    gate = upgrade.gate()
    assert (gate.n_queries, [check.name for check in gate.checks]) == (60, ["retention"])
    assert gate.flips is not None
    assert gate.flips.n_queries == 60
    assert upgrade.status().gates[0].verdict == gate.verdict
    curve, flips = upgrade.curve(), upgrade.flips(limit=3)
    assert curve.points[-1].fraction == 1.0
    assert curve.baseline is not None
    assert (flips.queries, len(flips.flips) <= 3) == (60, True)
    assert upgrade.rollback().phase == "none"
    assert client.search(vector=new_vectors(shop).vectors[0], k=1)
    upgrade.start(order="random", sample=0, run=True)
    while (status := upgrade.status()).old or status.job.running:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert upgrade.finish(keep_old=1e6).phase == "finished"
    assert upgrade.status().would_vanish == 0
    assert upgrade.forget().phase == "none"
    assert len(client.info().spaces) == 1
    thread.join(PATIENCE)
    assert not thread.is_alive(), seen


def test_events_continue_after_a_lost_connection(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("midspan.client.client.sleep", waits.append)
    stream = b'retry: 2000\n\nevent: gallery\ndata: {"items": %d}\n\nevent: heartbeat\ndata: {}\n\n'
    with Client(stub.url, retries=2) as client:
        stub.will(
            Reply(body=stream % 1), Reply(drop=True), Reply(503), Reply(body=stream % 2),
            Reply(drop=True),
        )  # fmt: skip
        events = client.events()
        assert [next(events).data["items"] for _ in range(2)] == [1, 2]
        with pytest.raises(Unreachable):
            next(events)
        assert len(stub.asked) == 4 + 3
        assert len(waits) == 6
        stub.will(Reply(body=stream % 3))
        assert [event.name for event, _ in zip(client.events(heartbeats=True), "ab")] == [  # noqa: B905
            "gallery",
            "heartbeat",
        ]
        stub.will(Reply(401))
        with pytest.raises(RequestError):
            next(client.events())


def test_events_end_when_another_thread_closes_the_client(service: tuple[Watched, str]) -> None:
    _, url = service
    client = Client(url, token=READ)
    listening, ended = threading.Event(), threading.Event()

    def listen() -> None:
        for event in client.events():
            if event.name == "jobs":  # the last of the greeting: now it waits for what comes
                listening.set()
        ended.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert listening.wait(PATIENCE)
    client.close()
    assert ended.wait(5), "a heartbeat comes only after 15 s"
    thread.join()
    assert list(client.events()) == []


def test_threads_can_share_one_client(client: Client) -> None:
    items: list[Item] = []
    threads = [
        threading.Thread(target=lambda n=n: items.append(client.get(name(n)))) for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {item.id for item in items} == {name(n) for n in range(12)}
