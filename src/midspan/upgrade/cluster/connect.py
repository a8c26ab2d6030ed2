"""To a Ray cluster that exists, and what its workers shall be."""

from __future__ import annotations

import logging
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midspan.errors import ClusterError, ConfigError, MissingDependency

REACHABLE = 5.0  # seconds for a first handshake with the address
_ADDRESS = re.compile(r"(?P<client>ray://)?(?P<host>[^/:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
ADDRESSES = "auto, local, ray://host:10001 or host:6379"


@dataclass(frozen=True, slots=True)
class Workers:
    """Defaults are our own choices; tests use shorter times.

    count: None is one for each GPU of the cluster, or for each processor core where there are no
    GPUs. gpus: of each worker; None is 1 where the cluster has GPUs, else 0.
    """

    address: str
    count: int | None = None
    gpus: float | None = None
    cpus: float = 1.0
    ahead: int = 2  # batches that a worker holds: one is embedded while the next one is read
    patience: float = 300.0  # seconds without any worker (none is free, all were lost)
    stuck: float = 600.0  # seconds after which a batch that does not come back is lost

    def __post_init__(self) -> None:
        whole = (("workers", self.count), ("ahead", self.ahead))
        for name, value in whole:
            if value is not None and value < 1:
                raise ConfigError(f"expected {name} >= 1, got {value}")
        if self.gpus is not None and self.gpus < 0:
            raise ConfigError(f"expected gpus per worker >= 0, got {self.gpus}")


def ray_module() -> Any:
    """Ray, where it is used; no statistics are sent to its makers unless asked for."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingDependency("ray", extra="ray", required_for="work on a cluster") from error
    return ray


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The ray module, connected. A connection that is there already is used, and stays."""
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    _knock(address)
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        settings["include_dashboard"] = False
    try:
        ray.init(address, **settings)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        raise ClusterError(
            f"no Ray cluster answers at {address!r} ({error}); expected {ADDRESSES}. "
            "`ray start --head` makes one; Python and Ray must be of the same version everywhere"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Ray itself waits for minutes before a door that nobody opens."""
    if address == "local" or (address == "auto" and not _last_cluster()):
        return
    if address == "auto":
        address = _last_cluster()
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ConfigError(f"expected {ADDRESSES} as the address of a Ray cluster, got {address!r}")
    host, port = match["host"].strip("[]"), int(match["port"])
    try:
        socket.create_connection((host, port), timeout=REACHABLE).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"nobody listens at {host}:{port} ({error}); is the cluster up (ray status), and is "
            "the port open to this machine?"
        ) from error


def _last_cluster() -> str:
    """Where Ray looks for "auto": the environment, or what `ray start` left on this machine."""
    if address := os.environ.get("RAY_ADDRESS", ""):
        return address
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    try:
        return (folder / "ray" / "ray_current_cluster").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
