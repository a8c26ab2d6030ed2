"""Slow uploads against a running service: what they cost in memory, and what others notice.

    python benchmarks/slow_clients.py                      # 500 slow clients, 30 s
    python benchmarks/slow_clients.py --clients 50 --seconds 10

Each slow client announces an image of 20 MB, sends `--first` kilobytes of it at once and then one
byte a second, each at its own time. Meanwhile one other client searches by vector, before (idle)
and during. Expected: memory of the server grows by at most 100 MB, p99 of the other at most twice
the idle one.
Writes a row to benchmarks/results/slow_clients.csv.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import httpx
import numpy as np

from midspan.gallery import Gallery
from midspan.spaces import Embeddings, Space

RESULTS = Path(__file__).parent / "results" / "slow_clients.csv"
ITEMS, DIM = 20_000, 128
BODY = 20_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--first", type=int, default=2000, help="kilobytes sent at once")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        vectors = make_gallery(Path(folder) / "g.midspan")
        server, port = start(Path(folder) / "g.midspan", Path(folder) / "serve.toml")
        try:
            url = f"http://127.0.0.1:{port}"
            searches(url, vectors, seconds=3.0)  # warm
            idle = searches(url, vectors, seconds=given.seconds)
            before = memory_of(server.pid)
            stop, sent = multiprocessing.Event(), multiprocessing.Event()
            slow = multiprocessing.Process(
                target=drip, args=(port, given.clients, 1000 * given.first, stop, sent)
            )
            slow.start()
            sent.wait(300)
            busy = searches(url, vectors, seconds=given.seconds)
            after = memory_of(server.pid)
            stop.set()
            slow.join()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    row = {
        "clients": given.clients,
        "first_kb": given.first,
        "idle_p50_ms": round(1000 * float(np.percentile(idle, 50)), 2),
        "idle_p99_ms": round(1000 * float(np.percentile(idle, 99)), 2),
        "busy_p50_ms": round(1000 * float(np.percentile(busy, 50)), 2),
        "busy_p99_ms": round(1000 * float(np.percentile(busy, 99)), 2),
        "rss_before_mb": round(before / 1e6),
        "rss_after_mb": round(after / 1e6),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
    print(row)
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as opened:
        writer = csv.DictWriter(opened, row, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def make_gallery(place: Path) -> np.ndarray:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((ITEMS, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    space = Space("bench", DIM)
    with Gallery.create(str(place), space) as gallery:
        gallery.add(Embeddings(np.array([f"{n:06d}" for n in range(ITEMS)]), vectors, space))
    return vectors[:500]


def start(place: Path, settings: Path) -> tuple[subprocess.Popen[bytes], int]:
    settings.write_text("[limits]\nbody_seconds = 600.0\n")  # so that the slow ones stay
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = ["-m", "midspan", "serve", "--gallery", str(place), "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, *command, "--settings", str(settings)], stderr=subprocess.DEVNULL
    )
    for _ in range(600):
        try:
            httpx.get(f"http://127.0.0.1:{port}/readyz").raise_for_status()
            return server, port
        except httpx.HTTPError:
            time.sleep(0.1)
    raise SystemExit("the server did not start")


def searches(url: str, vectors: np.ndarray, *, seconds: float) -> list[float]:
    """Seconds of each."""
    took, until, at = list[float](), time.monotonic() + seconds, 0
    with httpx.Client() as client:
        while time.monotonic() < until:
            body = {"vector": vectors[at % len(vectors)].tolist()}
            started = time.perf_counter()
            client.post(f"{url}/v1/search/vector", json=body).raise_for_status()
            took.append(time.perf_counter() - started)
            at += 1
            time.sleep(0.005)
    return took


def drip(port: int, clients: int, first: int, stop: Event, sent: Event) -> None:
    head = (
        "POST /v1/search/image HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {BODY}\r\n\r\n"
        '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    ).encode()
    wires = []
    for _ in range(clients):
        wire = socket.create_connection(("127.0.0.1", port), timeout=60)
        try:
            wire.sendall(head + b"x" * first)
        except OSError:
            continue  # refused: there is no room for another
        wires.append(wire)
    sent.set()
    while not stop.is_set():
        for (
            wire
        ) in wires:  # each second one byte of each, evenly spread as of clients that are apart
            stop.wait(1.0 / len(wires))
            try:
                wire.sendall(b"x")
            except OSError:
                continue
    for wire in wires:
        wire.close()


def memory_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise SystemExit("the server is gone")


if __name__ == "__main__":
    main()
