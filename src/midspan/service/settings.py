"""How a service is set up: flags of `midspan serve`, the rest from a TOML file."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from midspan.config import check_settings, construct, read_toml
from midspan.errors import ConfigError
from midspan.gallery.stores import scheme_of

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may ask for. The defaults are our own choices for one small machine."""

    json_bytes: int = 8 * MIB
    image_bytes: int = 20 * MIB
    pixels: int = 50_000_000
    frames: int = 64
    decode_seconds: float = 10.0  # wall clock, and CPU of the worker
    decode_memory: int = 2048 * MIB  # address space of a worker
    decode_workers: int = 2
    search_threads: int = 2
    waiting: int = 256  # requests that may wait for one kind of work; then 503
    streams: int = 64  # open event streams
    encode_batch: int = 32
    encode_wait: float = 0.005  # seconds that the first image of a batch waits for others
    thumbnail_cache: int = 64 * MIB
    idempotency_keys: int = 10_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`images`: folders whose files may be shown as thumbnails and read by the backfill.

    uploads: folder of images that clients put; default beside an embedded gallery.
    new_vectors: vectors of the new encoder by item id, if it runs elsewhere.
    shadow_old, shadow_new: queries for the gate; default a sample of the gallery's own items.
    latency_ceiling: the backfill rests while the p99 of live searches (seconds) is above it.
    """

    gallery: str
    encoder: str | None = None
    new_encoder: str | None = None
    new_vectors: Path | None = None
    bridge: Path | None = None
    images: tuple[Path, ...] = ()
    uploads: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    tokens: Path | None = None
    hosts: tuple[str, ...] = ()  # names it is reached by, beside its address
    shadow_old: Path | None = None
    shadow_new: Path | None = None
    label_key: str = "labels"
    batch: int = 64  # items that the backfill embeds and writes at once
    max_rate: float | None = None
    latency_ceiling: float = 0.5
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.new_encoder is not None and self.new_vectors is not None:
            raise ConfigError("give either new_encoder or new_vectors: both say where to upgrade")
        if (self.shadow_old is None) != (self.shadow_new is None):
            raise ConfigError("shadow queries come in pairs: shadow_old and shadow_new")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port {self.port}; wanted 0 to 65535")
        for folder in self.images:
            if not folder.is_dir():
                raise ConfigError(f"images: {folder} is not a folder")

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def uploads_folder(self) -> Path | None:
        """Where put images go, or None if there is no place for them."""
        if self.uploads is not None:
            return self.uploads
        if scheme_of(self.gallery) != "sqlite":
            return None
        file = Path(self.gallery.removeprefix("sqlite://"))
        return file.with_name(f"{file.name}.images")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_settings(file: Path | None, given: dict[str, Any]) -> Settings:
    """The file's settings under those of the command line; unknown ones are errors."""
    values = {} if file is None else read_toml(file)
    limits = construct(Limits, values.pop("limits", {}), where=f"{file}: [limits]")
    told = {name: value for name, value in given.items() if value not in (None, ())}
    merged = check_settings(
        Settings, {**values, **told}, where=str(file or "midspan serve"), taken=("limits",)
    )
    return Settings(**merged, limits=limits)
