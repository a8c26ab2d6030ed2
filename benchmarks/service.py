"""The service under load on loopback, beside the same work without HTTP.

    python benchmarks/service.py                                   # 60 s of each, 64 connections
    python benchmarks/service.py --seconds 5 --items 20000
    python benchmarks/service.py --encoder runs/old --part images

vectors: POST /v1/search/vector with one query each, against Gallery.search in this process on the
same gallery with the same queries, one at a time, from one thread and from two (the better of both
counts). images: POST /v1/search/image with whole image files, against the bare encoder on the same
images, decoded before and in batches of 32. Wanted: 0.7 and 0.9 of it, vectors with a p99 of at
most 60 ms, no errors, flat memory.

Processor times are told beside the rates: on a busy machine they say more.

The load comes from wrk (Debian: apt-get install wrk), which shares the cores with the service; in
this process nothing runs meanwhile. Gallery: unit vectors around `items / 100` centres in the
encoder's space. Writes its rows to benchmarks/results/service.csv.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the service does; read at import

import httpx
import numpy as np
from PIL import Image

from midspan.encoders import Encoder, build_encoder, load_encoder
from midspan.gallery import Gallery
from midspan.spaces import Embeddings, FloatArray, Space

RESULTS = Path(__file__).parent / "results" / "service.csv"
CONNECTIONS = 64
K = 10
QUERIES = 1000
PICTURES = 256
BATCH = 32
WARM = 2.0  # seconds before each measurement
LUA = """
local bodies, at = {}, 0
init = function(args)
  local lengths = io.open(os.getenv("BENCH_BODIES") .. ".lengths")
  local file = io.open(os.getenv("BENCH_BODIES"), "rb")
  for length in lengths:lines() do
    bodies[#bodies + 1] = wrk.format("POST", nil, nil, file:read(tonumber(length)))
  end
end
request = function()
  at = at % #bodies + 1
  return bodies[at]
end
done = function(summary, latency, requests)
  local e = summary.errors
  local numbers = {
    summary.requests, summary.duration, e.status, e.connect + e.read + e.write + e.timeout,
    latency:percentile(50), latency:percentile(99)}
  print("RESULT [" .. table.concat(numbers, ",") .. "]")
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    rate: float  # answers a second
    p50: float  # ms
    p99: float
    errors: int
    cpu: float  # ms of the service's processor time for one answer
    rss_start: float  # MiB of the service, after the warm-up
    rss_end: float


class Server:
    def __init__(self, gallery: Path, encoder: Path, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = (folder / "service.log").open("wb")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "midspan", "serve", "--gallery", str(gallery)),
                *("--encoder", str(encoder), "--port", str(port)),
            ],
            stderr=self.log,
            stdout=self.log,
        )
        deadline = time.monotonic() + 120
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the service did not start: {(folder / 'service.log').read_text()}")
            try:
                if httpx.get(f"{self.url}/readyz", timeout=30).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)

    def rss(self) -> float:
        text = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii")
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cpu(self) -> float:
        """Seconds of processor time so far, its decoders included."""
        ticks = 0
        for file in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, _, rest = file.read_text(encoding="utf-8").rpartition(")")
            except OSError:
                continue  # it ended meanwhile
            parent, *fields = rest.split()[1:]
            if str(self.process.pid) in (parent, name.split()[0]):
                ticks += int(fields[9]) + int(fields[10])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()


class Bench:
    def __init__(self, settings: argparse.Namespace, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.encoder_folder = encoder_at(settings.encoder, folder)
        self.encoder: Any = load_encoder(str(self.encoder_folder))
        self.rows: list[tuple[str, str, float, str]] = []

    def note(self, part: str, what: str, value: float, wanted: str = "") -> None:
        self.rows.append((part, what, round(value, 4), wanted))
        print(f"{part:8} {what:44} {value:12.3f}  {wanted}", flush=True)

    # ---- vectors

    def vectors(self) -> None:
        space = self.encoder.space
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((max(1, self.settings.items // 100), space.dim))
        stored = around(centres, self.settings.items, rng)
        queries = around(centres, QUERIES, rng)
        place = self.folder / f"shop-{self.settings.items}.midspan"
        if not place.exists():
            fill(place, stored, space)
        with Gallery.open(place) as gallery:
            bare = self.in_process(gallery, queries)
        server = Server(place, self.encoder_folder, self.folder)
        try:
            bodies = [as_body(query) for query in queries]
            self.same_results(server, place, queries, bodies)
            load = self.load(server, "/v1/search/vector", "application/json", bodies)
        finally:
            server.end()
        self.report("vectors", load, bare, wanted=0.7, p99="<= 60")

    def in_process(self, gallery: Gallery, queries: FloatArray) -> float:
        """Searches a second of one query each, the better of one thread and two."""
        space = self.encoder.space
        gallery.search(queries[:1], space=space, k=K)
        settle(time.process_time)

        def one(number: int) -> None:
            query = queries[number % QUERIES]
            gallery.search(query[None], space=space, k=K)

        rates = []
        for threads in (1, 2):
            used = time.process_time()
            rate = calls_per_second(one, threads=threads, seconds=self.seconds_bare)
            self.note("vectors", f"in-process searches/s, threads {threads}", rate)
            rates.append(rate)
            if threads == 1:
                took = (time.process_time() - used) / (rate * self.seconds_bare)
                self.note("vectors", "processor ms for one, in-process", 1000 * took)

        def many(number: int) -> None:
            rows = np.arange(number * CONNECTIONS, (number + 1) * CONNECTIONS) % QUERIES
            gallery.search(queries[rows], space=space, k=K)

        batched = calls_per_second(many, threads=1, seconds=self.seconds_bare)
        self.note("vectors", f"in-process queries/s, {CONNECTIONS} a call", batched * CONNECTIONS)
        return max(rates)

    def same_results(
        self, server: Server, place: Path, queries: FloatArray, bodies: list[bytes]
    ) -> None:
        """What is fast must also be right. Exact: two indexes may look into different lists."""
        url, headers = f"{server.url}/v1/search/vector", {"content-type": "application/json"}
        with Gallery.open(place) as gallery:
            own = gallery.search(queries[:20], space=self.encoder.space, k=K, exact=True)
        for body, hits in zip(bodies, own, strict=False):
            exact = body.removesuffix(b"}") + b',"exact":true}'
            answer = httpx.post(url, content=exact, headers=headers, timeout=60).json()
            assert [hit["id"] for hit in answer["results"]] == [hit.id for hit in hits]

    # ---- images

    def images(self) -> None:
        encoder = self.encoder
        box = encoder.preprocessing
        rng = np.random.default_rng(1)
        shape = (box.height, box.width) if box.channels == 1 else (box.height, box.width, 3)
        pixels = [smooth(rng, shape) for _ in range(PICTURES)]
        stacked = np.stack(pixels).reshape(PICTURES, box.height, box.width, box.channels)

        def embed(number: int) -> None:
            start = number * BATCH % PICTURES
            encoder.embed(stacked[start : start + BATCH], progress=False, batch_size=BATCH)

        used = time.process_time()
        bare = BATCH * calls_per_second(embed, threads=1, seconds=self.seconds_bare)
        took = (time.process_time() - used) / (bare * self.seconds_bare)
        self.note("images", "processor ms for one, bare encoder", 1000 * took)
        self.note("images", f"bare encoder images/s, batches of {BATCH}", bare)
        place = self.folder / "pictures.midspan"
        place.unlink(missing_ok=True)
        with Gallery.create(place, encoder.space) as gallery:
            made = encoder.embed(stacked, progress=False)
            ids = np.array([f"picture-{n}" for n in range(PICTURES)])
            gallery.add(Embeddings(ids, made.vectors, encoder.space))
        forms = [as_form(image) for image in pixels]
        server = Server(place, self.encoder_folder, self.folder)
        try:
            load = self.load(
                server, "/v1/search/image", "multipart/form-data; boundary=bench", forms
            )
        finally:
            server.end()
        self.report("images", load, bare, wanted=0.9)

    # ---- both

    @property
    def seconds_bare(self) -> float:
        return float(min(10.0, self.settings.seconds))

    def load(self, server: Server, path: str, kind: str, bodies: list[bytes]) -> Load:
        file = self.folder / "bodies"
        file.write_bytes(b"".join(bodies))
        lengths = "".join(f"{len(body)}\n" for body in bodies)
        file.with_name("bodies.lengths").write_text(lengths, encoding="ascii")
        script = self.folder / "load.lua"
        script.write_text(f'wrk.headers["Content-Type"] = "{kind}"\n{LUA}', encoding="ascii")

        def run(seconds: float) -> list[float]:
            """Answers, microseconds, not 200, lost, p50 and p99 in microseconds."""
            command = [
                *("wrk", "--threads", "1", "--connections", str(CONNECTIONS)),
                *("--duration", f"{max(1, round(seconds))}s", "--timeout", "30s"),
                *("--script", str(script), server.url + path),
            ]
            environment = {**os.environ, "BENCH_BODIES": str(file)}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            found: list[float] = json.loads(done.stdout.rpartition("RESULT ")[2])
            return found

        run(WARM)
        settle(server.cpu)
        run(WARM)
        start = server.rss()
        used = server.cpu()
        answers, microseconds, bad, lost, p50, p99 = run(self.settings.seconds)
        return Load(
            rate=(answers - bad) / microseconds * 1e6,
            p50=p50 / 1000,
            p99=p99 / 1000,
            errors=round(bad + lost),
            cpu=1000 * (server.cpu() - used) / max(1, answers),
            rss_start=start,
            rss_end=server.rss(),
        )

    def report(self, part: str, load: Load, bare: float, *, wanted: float, p99: str = "") -> None:
        self.note(part, f"HTTP requests/s, {CONNECTIONS} connections", load.rate)
        self.note(part, "HTTP / without", load.rate / bare, f">= {wanted}")
        self.note(part, "processor ms for one, HTTP", load.cpu)
        self.note(part, "p50 ms", load.p50)
        self.note(part, "p99 ms", load.p99, p99)
        self.note(part, "errors", load.errors, "0")
        self.note(part, "service MiB at the start", load.rss_start)
        self.note(part, "service MiB at the end", load.rss_end, "as at the start")

    def save(self) -> None:
        """Rows of other settings stay."""
        settings = self.settings
        head = ["part", "items", "encoder", "what", "value", "wanted", "seconds", "date", "load",
                "machine"]  # fmt: skip
        name = f"{self.encoder.space.name} {self.encoder.preprocessing.height}px"
        rest = [settings.seconds, time.strftime("%Y-%m-%d"), round(os.getloadavg()[0], 1)]
        machine = f"{platform.machine()} {os.cpu_count()} cores"
        new = []
        for part, what, value, wanted in self.rows:
            items = settings.items if part == "vectors" else PICTURES
            new.append([part, str(items), name, what, value, wanted, *rest, machine])
        kept = []
        if settings.out.exists():
            with settings.out.open(newline="", encoding="utf-8") as file:
                kept = list(csv.reader(file))[1:]
        replaced = {tuple(row[:3]) for row in new}
        settings.out.parent.mkdir(exist_ok=True)
        with settings.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(head)
            writer.writerows([row for row in kept if tuple(row[:3]) not in replaced] + new)


def encoder_at(given: str | None, folder: Path) -> Path:
    """A run folder, or one that is made, with weights at random.

    As wide and deep as a ResNet-18; without its first pooling, 112 pixels cost what 224 cost there.
    """
    if given is not None:
        return Path(given)
    if (folder / "encoder" / "config.json").exists():
        return folder / "encoder"
    made: Encoder = build_encoder(
        backbone="small-resnet",
        dim=128,
        size=112,
        name="resnet18",
        seed=0,
        settings={"width": 64, "blocks": 2},
    )
    made.eval()
    return made.save(folder / "encoder")


def fill(place: Path, vectors: FloatArray, space: Space) -> None:
    part = place.with_name("part.midspan")
    part.unlink(missing_ok=True)
    with Gallery.create(part, space) as gallery:
        for start in range(0, len(vectors), 2000):
            rows = vectors[start : start + 2000]
            ids = np.array([f"item-{start + n:07}" for n in range(len(rows))])
            payloads = [{"price": start + n} for n in range(len(rows))]
            gallery.add(Embeddings(ids, rows, space), payloads=payloads)
    part.rename(place)
    with Gallery.open(place) as gallery:
        gallery.build_due_indexes()  # in the background it waits until the load is over


def settle(cpu: Callable[[], float]) -> None:
    """Until the index's own thread has nothing more to do: no processor time for a second."""
    quiet, used = 0.0, cpu()
    while quiet < 1.0:
        time.sleep(0.25)
        now = cpu()
        quiet = quiet + 0.25 if now - used < 0.03 else 0.0
        used = now


def around(centres: Any, count: int, rng: np.random.Generator) -> FloatArray:
    rows = centres[rng.integers(0, len(centres), count)]
    rows = rows + rng.standard_normal(rows.shape)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def smooth(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """A picture that packs as photographs do, not as noise does."""
    small = rng.integers(0, 255, (8, 8, *shape[2:]), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((shape[1], shape[0]), Image.Resampling.BICUBIC))


def as_body(query: FloatArray) -> bytes:
    numbers = ",".join(np.format_float_positional(x, unique=True) for x in query)
    return f'{{"vector":[{numbers}],"k":{K}}}'.encode()


def as_form(pixels: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    head = b'--bench\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n\r\n'
    return head + out.getvalue() + b"\r\n--bench--\r\n"


def calls_per_second(call: Callable[[int], None], *, threads: int, seconds: float) -> float:
    for number in range(3):
        call(number)
    counts = [0] * threads
    until = time.perf_counter() + seconds

    def work(which: int) -> None:
        while time.perf_counter() < until:
            call(counts[which] * threads + which)
            counts[which] += 1

    workers = [threading.Thread(target=work, args=(which,)) for which in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load")
    parser.add_argument("--items", type=int, default=100_000, help="vectors in the gallery")
    parser.add_argument("--encoder", help="run folder; by default one is made")
    parser.add_argument("--part", choices=["vectors", "images"], help="by default both")
    parser.add_argument("--folder", type=Path, help="keeps the gallery for the next time")
    parser.add_argument("--out", type=Path, default=RESULTS)
    settings = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="bench-service-") as folder:
        if settings.folder is not None:
            settings.folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(settings, settings.folder or Path(folder))
        for part in [settings.part] if settings.part else ["vectors", "images"]:
            getattr(bench, part)()
        bench.save()


if __name__ == "__main__":
    main()
