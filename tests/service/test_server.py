"""A real server in a process of its own: refused, killed, stopped in good order, never blocked."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from midspan.gallery import Gallery
from tests.service.shop import Shop, encoded, make_gallery, name, new_vectors

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0  # the machine may be busy
pytestmark = [pytest.mark.slow, pytest.mark.server]


class Server:
    def __init__(self, shop: Shop, place: str, *more: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = open(f"{place}.log", "ab")  # noqa: SIM115  # as long as the process lives
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.service.run_midspan", "serve", "--gallery", place),
                *("--images", str(shop.images), "--port", str(port), *more),
            ],
            cwd=ROOT,
            stderr=self.log,
            stdout=self.log,
        )
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self.process.poll() is None, Path(f"{place}.log").read_text()
            assert time.monotonic() < deadline
            try:
                if httpx.get(f"{self.url}/readyz", timeout=30).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)

    def end(self, number: int = signal.SIGKILL) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.log.close()
        return code


@pytest.fixture
def place(shop: Shop, tmp_path: Path) -> str:
    return make_gallery(shop, tmp_path / "shop.midspan")


def command(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MIDSPAN_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.service.run_midspan", "serve", *arguments],
        cwd=ROOT,
        env={**clean, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stderr


def test_server_log_lines_are_json_whatever_a_library_prints(
    shop: Shop, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_NOTICE", "an encoder has something to say")
    server = Server(shop, place, "--encoder", str(shop.old))
    server.end(signal.SIGTERM)
    lines = [json.loads(line) for line in Path(f"{place}.log").read_text().splitlines()]
    said = [line for line in lines if line["message"] == "an encoder has something to say"]
    assert [line["source"] for line in said] == ["stderr"]
    assert lines[-1]["message"] == "stopped"


def test_server_beyond_loopback_without_tokens_does_not_start(place: str, tmp_path: Path) -> None:
    code, said = command("--gallery", place, "--host", "0.0.0.0", "--port", "0")
    assert code == 2
    assert "can be reached from other machines" in said
    assert "Traceback" not in said
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('read = "rrrrrrrrrrrrrrrrrrrr"\nadmin = "aaaaaaaaaaaaaaaaaaaa"\n')
    tokens.chmod(0o640)
    code, said = command("--gallery", place, "--host", "0.0.0.0", "--tokens", str(tokens))
    assert (code, "chmod 600" in said) == (2, True)
    code, said = command("--gallery", str(tmp_path / "nothing.midspan"))
    assert (code, said.startswith("error: ")) == (2, True)


def test_kill_9_during_adds_loses_nothing_that_was_acknowledged(shop: Shop, place: str) -> None:
    server = Server(shop, place, "--encoder", str(shop.old))
    acknowledged: list[str] = []

    def add(worker: int) -> None:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            for number in range(10_000):
                id = f"w{worker}-{number}"
                try:
                    answer = client.put(f"/v1/items/{id}", files={"file": encoded(number % 50)})
                except httpx.TransportError:
                    return
                if answer.status_code == 200:
                    acknowledged.append(id)

    threads = [threading.Thread(target=add, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    while len(acknowledged) < 20 and time.monotonic() < deadline:
        time.sleep(0.01)
    server.end(signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert len(acknowledged) >= 20, "it did too little to mean something"
    server = Server(shop, place)
    try:
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
            for id in acknowledged:
                assert client.get(f"/v1/items/{id}").status_code == 200, id
                assert client.get(f"/v1/thumbnails/{id}").status_code == 200, id
            assert client.get("/v1/gallery/verify").json()["ok"] is True
    finally:
        assert server.end(signal.SIGTERM) == 0


def test_upgrade_continues_by_itself_after_kill_9_during_a_backfill(shop: Shop, place: str) -> None:
    def status(server: Server) -> dict[str, int]:
        counts: dict[str, int] = httpx.get(f"{server.url}/v1/upgrade", timeout=PATIENCE).json()
        assert counts["old"] + counts["new"] + counts["failed"] == counts["all"] == 60
        return counts

    def until(server: Server, new: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while status(server)["new"] < new:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    file = new_vectors(shop).save(f"{place}.npz")
    settings = Path(f"{place}.toml")
    settings.write_text(f'new_vectors = "{file}"\nbatch = 4\nmax_rate = 15.0\n')
    server = Server(shop, place, "--settings", str(settings))
    body = {"order": "random", "run": True, "sample": 0}
    assert (
        httpx.post(f"{server.url}/v1/upgrade/start", json=body, timeout=PATIENCE).status_code == 200
    )
    until(server, 4)
    server.end(signal.SIGKILL)
    with Gallery.open(place) as gallery:
        before = gallery.count().done
    assert 0 < before < 60
    settings.write_text(f'new_vectors = "{file}"\nbatch = 16\n')
    server = Server(shop, place, "--settings", str(settings))
    try:
        until(server, 60)
        query = {"vector": new_vectors(shop).vectors[5].tolist()}
        answer = httpx.post(f"{server.url}/v1/search/vector", json=query, timeout=PATIENCE).json()
        assert (answer["results"][0]["id"], answer["results"][0]["space_role"]) == (name(5), "new")
    finally:
        server.end(signal.SIGTERM)


def test_health_answers_while_an_encoder_works_and_a_stop_finishes_what_it_began(
    shop: Shop, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_SLOW_ENCODER", "5")
    server = Server(shop, place, "--encoder", str(shop.old))
    answers: list[int] = []

    def search() -> None:
        url = f"{server.url}/v1/search/image"
        answers.append(httpx.post(url, files={"file": encoded(1)}, timeout=PATIENCE).status_code)

    thread = threading.Thread(target=search)
    thread.start()
    time.sleep(1.0)  # it decodes, then sleeps inside of the encoder
    slowest = 0.0
    for _ in range(5):
        started = time.monotonic()
        assert httpx.get(f"{server.url}/healthz", timeout=PATIENCE).status_code == 200
        slowest = max(slowest, time.monotonic() - started)
    assert answers == [], "the encoder was done too early to show anything"
    assert slowest < 4.0
    with httpx.stream("GET", f"{server.url}/v1/events", timeout=PATIENCE) as events:
        lines = events.iter_lines()
        assert next(lines).startswith("retry:")
        server.process.send_signal(signal.SIGTERM)
        rest = list(lines)
        assert "event: gallery" in rest
    thread.join()
    assert answers == [200], "an answer that was begun was not finished"
    assert server.process.wait(PATIENCE) == 0
    server.log.close()
    last = json.loads(Path(f"{place}.log").read_text().splitlines()[-1])
    assert last["message"] == "stopped"
