"""A real Milvus, from the wheel `milvus` that `make setup` puts beside the environment."""

from __future__ import annotations

import lzma
import os
import queue
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from midspan.gallery.engines.milvus_connection import SECONDS, MilvusConnection
from midspan.gallery.engines.milvus_location import milvus_location
from midspan.gallery.location import parse_location

SPARES = 12
WHERE = "MIDSPAN_MILVUS"
SETTINGS = {  # a server waits for more work to come before it does something: not here
    "PROXY_TIMETICKINTERVAL": "10",
    "QUERYCOORD_CHECKINTERVAL": "50",
    "QUERYCOORD_DISTPULLINTERVAL": "50",
    "QUERYCOORD_CHECKCHANNELINTERVAL": "50",
    "QUERYCOORD_CHECKSEGMENTINTERVAL": "50",
    "QUERYCOORD_CHECKINDEXINTERVAL": "100",
    "QUERYCOORD_UPDATENEXTTARGETINTERVAL": "1",
}

ETCD = """\
name: default
data-dir: {data}
log-level: error
unsafe-no-fsync: true
listen-client-urls: http://127.0.0.1:{client}
advertise-client-urls: http://127.0.0.1:{client}
listen-peer-urls: http://127.0.0.1:{peer}
initial-advertise-peer-urls: http://127.0.0.1:{peer}
initial-cluster: default=http://127.0.0.1:{peer}
"""


def wheel() -> Path | None:
    """The folder that holds the server: named by MIDSPAN_MILVUS, or filled by `make setup`."""
    folder = Path(os.environ.get(WHERE) or Path(sys.prefix) / "milvus-server")
    data = folder / "milvus" / "data"
    return data if (data / "config.yaml.template").is_file() else None


def unpacked(data: Path) -> Path:
    """The wheel is packed with LZMA; taking it apart lasts 7 s, so it is done once."""
    program = data / "program"
    if not program.exists():
        rough = Path(tempfile.mkdtemp(prefix="program-", dir=data))
        for packed in (data / "bin").glob("*.lzma"):
            target = rough / packed.stem
            with lzma.open(packed) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
            target.chmod(0o755)
        try:
            rough.rename(program)
        except OSError:  # another worker was faster
            shutil.rmtree(rough)
    return program


# Dies with its parent. By a program of its own and not in a fork of ours, where gRPC's threads are
# gone and its handlers crash now and then.
STARTER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
os.execv(sys.argv[1], sys.argv[1:])
"""


class Milvus:
    """One server on free ports, in a folder of its own; it dies with this process.

    `session`: seconds of standstill (a stopped process, a sleeping laptop) that it survives, and
    that it takes to come back after it was killed.
    """

    def __init__(self, data: Path, *, session: int = 600) -> None:
        self._session = session
        self.home = Path(tempfile.mkdtemp(prefix="midspan-milvus-"))
        self._program = unpacked(data)
        self.port, self._health = self._configure(data)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def _configure(self, data: Path) -> tuple[int, int]:
        template = (data / "config.yaml.template").read_text()
        slots = re.findall(r"\{\{\s*(\w+)(?:\(\w+\))?\s*(?::\s*(.*?))?\s*\}\}", template)
        values = dict(slots)
        names = [name for name in values if name.endswith("_port")]
        ports = free_ports(len(names) + 2)
        values |= dict(zip(names, map(str, ports), strict=False))
        values |= {
            "etcd_log_path": str(self.home / "etcd.log"),
            "etcd_data_dir": str(self.home / "etcd"),
            "local_storage_dir": str(self.home / "files"),
            "rocksmq_data_dir": str(self.home / "rocksmq"),
            "system_log_path": str(self.home / "logs"),
            "etcd_log_level": "error",
        }
        text = re.sub(r"\{\{\s*(\w+).*?\}\}", lambda slot: values[slot[1]], template)
        (self.home / "configs").mkdir()
        (self.home / "configs" / "milvus.yaml").write_text(text)
        shutil.copy(data / "glog.conf", self.home / "configs" / "glog.conf")
        (self.home / "configs" / "etcd.yaml").write_text(
            ETCD.format(client=values["etcd_port"], peer=ports[-2], data=self.home / "etcd")
        )
        return int(values["proxy_port"]), ports[-1]

    def start(self) -> None:
        environment = {
            **os.environ,
            **SETTINGS,
            "COMMON_SESSION_TTL": str(self._session),
            "DEPLOY_MODE": "STANDALONE",
            "ETCD_CONFIG_PATH": str(self.home / "configs" / "etcd.yaml"),
            "METRICS_PORT": str(self._health),
            "MILVUS_RUN_DIR": str(self.home / "run"),
            "LD_LIBRARY_PATH": str(self._program),
        }
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", STARTER, str(self._program / "milvus"), "run", "standalone"],
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=environment,
            )
        deadline = time.time() + 240
        while not self._healthy():
            if time.time() > deadline or self._process.poll() is not None:
                raise RuntimeError((self.home / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._health}/healthz", timeout=5
            ) as answer:
                return b"OK" in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def location(self, name: str) -> str:
        return f"milvus://127.0.0.1:{self.port}/{name}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()  # at once: nobody needs the data any more
        shutil.rmtree(self.home, ignore_errors=True)


class Spares:
    """Collections that are loaded before they are needed; then they only get their name.

    To load one takes Milvus two seconds, to load twenty no longer. `make` stands in for
    `MilvusConnection.make`.
    """

    def __init__(self, location: str) -> None:
        place = parse_location(f"{location}?catalogue=memory:")
        self._server = MilvusConnection(milvus_location(place), shown=location)
        self._make = MilvusConnection.make
        self._shelves: dict[str, queue.Queue[str | Exception]] = {}
        self._uses: dict[str, int] = {}
        self._helper = ThreadPoolExecutor(1)

    def make(self, server: MilvusConnection, name: str, **settings: Any) -> None:
        if server.location.partitions or server.location.shards > 1:
            self._make(server, name, **settings)
            return
        kind = repr(settings)
        shelf = self._shelves.setdefault(kind, queue.Queue())
        self._uses[kind] = self._uses.get(kind, 0) + 1
        count = min(self._uses[kind], SPARES)  # what is asked for often is kept in store
        if shelf.qsize() <= count // 2:
            for _ in range(count):
                self._helper.submit(self._add, shelf, settings)
        spare = shelf.get(timeout=240)
        if isinstance(spare, Exception):
            raise spare
        with server.errors():
            server.client.rename_collection(spare, name, timeout=SECONDS)

    def _add(self, shelf: queue.Queue[str | Exception], settings: dict[str, Any]) -> None:
        name = f"spare_{uuid.uuid4().hex}"
        try:
            self._make(self._server, name, **settings)
        except Exception as error:
            shelf.put(error)
        else:
            shelf.put(name)

    def forget(self, name: str) -> None:
        """Collections of a gallery that is no longer needed are dropped."""
        with self._server.errors():
            for collection in self._server.collections():
                if collection.startswith(f"{name}__"):
                    for alias in self._server.client.list_aliases(collection)["aliases"]:
                        self._server.client.drop_alias(alias)
                    self._server.drop(collection)

    def close(self) -> None:
        self._helper.shutdown(cancel_futures=True)
        self._server.close()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
