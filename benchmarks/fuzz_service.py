"""Many hostile requests against a running service: python benchmarks/fuzz_service.py

20,000 requests from seeds: images (mutated, truncated, two formats in one, sizes that lie), JSON
bodies (mutated, of random shapes, huge), forms, ids and paths, headers and raw bytes; and all of
tests/service/corpus with every two thousand. The service is a process of its own, with small
limits. What must hold: no 5xx (503 only where it says that it is overloaded), the same process
answers to the end, its log has no fault, the gallery verifies, and no file outside of the gallery's
own was made, changed or removed: the service gets a home and a folder for temporary files that are
looked at as well. Counts by kind and status go to benchmarks/results/fuzz_service.csv; exit code 1
if anything did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fuzz_requests import Ask, asked, whole_corpus  # noqa: E402
from tests.service.shop import Shop, make_gallery, make_shop  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "fuzz_service.csv"
PATIENCE = 1.5  # seconds until a request that promised more is ended
SETTINGS = """
[limits]
json_bytes = 1048576
image_bytes = 1048576
encode_wait = 0.0
"""


class Service:
    def __init__(self, shop: Shop, folder: Path) -> None:
        self.log = folder / "service.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        for name in ("home", "tmp", "here"):
            (folder / name).mkdir()
        settings = folder / "serve.toml"
        settings.write_text(SETTINGS, encoding="utf-8")
        (folder / "gallery").mkdir()
        place = make_gallery(shop, folder / "gallery" / "shop.midspan", count=12)
        environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "midspan", "serve", "--gallery", place),
                    *("--encoder", str(shop.old), "--images", str(shop.images)),
                    *("--port", str(self.port), "--settings", str(settings)),
                ],
                cwd=folder / "here",
                env=environment,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 300
        while self.get("/readyz")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the service did not start: {self.log.read_text()}")
            time.sleep(0.2)

    def get(self, path: str) -> tuple[int, bytes]:
        return self.send(Ask("", "GET", path), seconds=120)

    def send(self, ask: Ask, *, seconds: float = 60) -> tuple[int, bytes]:
        """(status, all of the answer); 0: the connection ended without one."""
        got = b""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as wire:
                with contextlib.suppress(OSError):  # refused before all of it was sent
                    wire.sendall(ask.wire(f"127.0.0.1:{self.port}"))
                if ask.unfinished:  # the service may wait for more, and then gets the end
                    wire.settimeout(PATIENCE)
                while part := self._more(wire, seconds):
                    got += part
        except OSError:
            pass
        if got.startswith(b"HTTP/1.1 100"):
            got = got.partition(b"\r\n\r\n")[2]
        head = got.split(b" ", 2)
        number = int(head[1]) if len(head) > 2 and head[0].startswith(b"HTTP/1.") else 0
        return number, got

    def _more(self, wire: socket.socket, seconds: float) -> bytes:
        try:
            return wire.recv(65536)
        except TimeoutError:
            wire.shutdown(socket.SHUT_WR)
            wire.settimeout(seconds)
            return wire.recv(65536)

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@dataclass
class Tally:
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, ask: Ask, label: str, status: int, answer: bytes) -> None:
        overloaded = status == 503 and b'"Overloaded"' in answer
        with self.lock:
            self.counts[ask.kind, status] += 1
            if (status >= 500 and not overloaded) or b"Traceback" in answer:
                self.faults.append(f"{label}: {ask.method} {ask.path} → {status} {answer[-300:]!r}")


def fuzz(
    folder: Path, *, count: int, first: int, seconds: float, threads: int
) -> list[list[object]]:
    shop = make_shop(folder / "shop", pictures=12)
    service = Service(shop, folder)
    before = listing(folder)
    tally, started, seeds = Tally(), time.monotonic(), iter(range(first, first + count))
    late = False

    def work() -> None:
        nonlocal late
        while True:
            with tally.lock:
                seed = next(seeds, None)
            if seed is None or (late := late or time.monotonic() - started > seconds):
                return
            ask = asked(seed)
            tally.note(ask, f"seed {seed}", *service.send(ask))
            if seed % 2000 == 0:
                for number, one in enumerate(whole_corpus()):
                    tally.note(one, f"corpus {number}", *service.send(one))
            if seed % 500 == 0:
                print(f"{seed} {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.monotonic() - started
    alive = service.process.poll() is None and service.get("/healthz")[0] == 200
    verified = b'"ok":true' in service.get("/v1/gallery/verify")[1]
    replaced = service.get("/metrics")[1].partition(b"\nmidspan_decode_workers_replaced ")[2]
    clean = service.end() == 0
    touched = changes(before, listing(folder))
    log = service.log.read_text(encoding="utf-8").splitlines()
    logged = [line for line in log if '"level": "error"' in line or "Traceback" in line]
    for line in (*tally.faults[:20], *touched[:20], *logged[:20]):
        print(line, file=sys.stderr)
    statuses: Counter[int] = Counter()
    for (_, status), number in tally.counts.items():
        statuses[status] += number
    rows: list[list[object]] = [
        [kind, status or "no answer", number]
        for (kind, status), number in sorted(tally.counts.items())
    ]
    rows += [["all", status or "no answer", statuses[status]] for status in sorted(statuses)]
    rows += [
        ["all", "requests", sum(statuses.values())],
        ["all", "faults (5xx but Overloaded; wanted 0)", len(tally.faults)],
        ["all", "faults in the log (wanted 0)", len(logged)],
        ["all", "files touched outside of the gallery (wanted 0)", len(touched)],
        ["all", "same process answers at the end (wanted 1)", int(alive)],
        ["all", "gallery verifies (wanted 1)", int(verified)],
        ["all", "orderly end (wanted 1)", int(clean)],
        ["all", "decoders replaced", float(replaced.split(b"\n")[0] or b"nan")],
        ["all", "stopped by --seconds (wanted 0)", int(late)],
        ["all", "seconds", round(took, 1)],
    ]
    return rows


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file that is not of the gallery, with size and time of change.

    Caches of the home folder are left out: ONNX Runtime and our own graphs write there.
    """
    return {
        str(file.relative_to(folder)): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in folder.rglob("*")
        if file.is_file()
        and file.name != "service.log"
        and not file.is_relative_to(folder / "home" / ".cache")
        and "gallery/shop.midspan" not in str(file.relative_to(folder))
    }


def changes(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000, help="seeds; the corpus comes on top")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seconds", type=float, default=3600, help="no request after so long")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-service-") as folder:
        rows = fuzz(
            Path(folder).resolve(),
            count=given.count,
            first=given.first,
            seconds=given.seconds,
            threads=given.threads,
        )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["kind", "what", "value"])
        writer.writerows(rows)
    for row in rows:
        print(*row, sep="\t")
    wanted = [(str(what), value) for _, what, value in rows if "wanted" in str(what)]
    if any(value != int("wanted 1" in what) for what, value in wanted):
        sys.exit(1)


if __name__ == "__main__":
    main()
