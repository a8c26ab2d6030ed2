"""How a service is set up: flags of `midspan serve`, the rest from a TOML file."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from midspan.config import construct, read_toml
from midspan.errors import ConfigError
from midspan.gallery.location import parse_location

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
    search_threads: int = 2  # that read; searches by vector are made together in one more
    waiting: int = 256  # requests that may wait for one kind of work; then 503
    streams: int = 64  # open event streams
    encode_batch: int = 32
    encode_wait: float = 0.005  # seconds that the first image of a batch waits for others
    thumbnail_cache: int = 64 * MIB
    idempotency_keys: int = 10_000
    connections: int = 2048  # open at once; then 503
    header_seconds: float = 10.0  # until the headers of a request are there
    body_seconds: float = 60.0  # until its body is
    uploads: int = 512  # bodies of more than 64 KiB on their way in
    waiting_memory: int = 16 * MIB  # of them in memory, the rest is on disk
    waiting_disk: int = 2048 * MIB
    body_memory: int = 256 * MIB  # bodies that are worked on


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
DEFAULT = "default"  # name of a gallery that was given none


@dataclass(frozen=True, kw_only=True)
class GallerySettings:
    """One gallery of a service: where it is, and its encoders.

    name: as in /v1/galleries/NAME.
    images: folders whose files may be shown as thumbnails and read by the backfill.
    uploads: folder of images that clients put; default next to an embedded gallery.
    new_vectors: vectors of the new encoder by item id, if it runs elsewhere.
    shadow_old, shadow_new: queries for the gate; default a sample of the gallery's own items.
    old_space, new_space: names of the spaces of such files, where they do not hold them.
    latency_ceiling: the backfill rests while the p99 of live searches (seconds) is above it.
    """

    gallery: str
    name: str = DEFAULT
    encoder: str | None = None
    new_encoder: str | None = None
    runtime: str = "auto"  # what computes vectors of images: auto, torch, onnx or openvino
    new_vectors: Path | None = None
    bridge: Path | None = None
    images: tuple[Path, ...] = ()
    uploads: Path | None = None
    shadow_old: Path | None = None
    shadow_new: Path | None = None
    old_space: str | None = None
    new_space: str | None = None
    label_key: str = "labels"
    batch: int = 64  # items that the backfill embeds and writes at once
    max_rate: float | None = None
    latency_ceiling: float = 0.5

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(
                f"gallery name {self.name!r:.80}; expected up to 64 letters, digits, - and _"
            )
        if self.new_encoder is not None and self.new_vectors is not None:
            raise ConfigError("give either new_encoder or new_vectors: both say where to upgrade")
        if (self.shadow_old is None) != (self.shadow_new is None):
            raise ConfigError("shadow queries come in pairs: shadow_old and shadow_new")
        for folder in self.images:
            if not folder.is_dir():
                raise ConfigError(f"images: {folder} is not a folder")

    @property
    def uploads_folder(self) -> Path | None:
        """Where put images go, or None if there is no place for them."""
        if self.uploads is not None:
            return self.uploads
        file = parse_location(self.gallery).catalogue.path
        return None if file is None else file.with_name(f"{file.name}.images")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What the galleries of a service share: its address, tokens and limits."""

    host: str = "127.0.0.1"
    port: int = 8080
    tokens: Path | None = None
    hosts: tuple[str, ...] = ()  # names it is reached by, besides its address
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"expected port 0 to 65535, got {self.port}")

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """galleries: one or more; the first is the default."""

    galleries: tuple[GallerySettings, ...]
    server: ServerSettings = field(default_factory=ServerSettings)

    def __post_init__(self) -> None:
        if not self.galleries:
            raise ConfigError(
                "no gallery: give NAME=LOCATION, `gallery`, or [[galleries]] in the settings"
            )
        uploads = [one.uploads_folder for one in self.galleries]
        for what, those in (
            ("name", [one.name for one in self.galleries]),
            ("location", [_place(one.gallery) for one in self.galleries]),
            # a file there belongs to one item of one gallery
            ("uploads", [str(one.resolve()) for one in uploads if one is not None]),
        ):
            if len(set(those)) < len(those):
                names = ", ".join(one.name for one in self.galleries)
                raise ConfigError(f"two of the galleries {names} have the same {what}")


def _place(gallery: str) -> str:
    location = parse_location(gallery)
    file = location.catalogue.path
    return gallery if file is None else f"{location.scheme} {file.resolve()} {location.name}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_SERVER = tuple(one.name for one in fields(ServerSettings) if one.name != "limits")
_OF_ONE = ("gallery", "name")  # never the same for several


def read_settings(
    file: Path | None,
    given: dict[str, Any],
    *,
    galleries: Sequence[Mapping[str, Any]] = (),
) -> Settings:
    """The file's settings under those of the command line; unknown ones are errors.

    given: of the server, and of every gallery. galleries: of each that the command line names, by
    `name`; they come first, and win over a table of [[galleries]] with the same name. What stands
    outside of these tables holds for each gallery that does not say otherwise.
    """
    where = str(file or "midspan serve")
    values = {} if file is None else read_toml(file)
    limits = construct(Limits, values.pop("limits", {}), where=f"{file}: [limits]")
    tables = _tables(values.pop("galleries", []), where=where)
    told = {name: value for name, value in given.items() if value not in (None, ())}
    merged = {**values, **told}
    server = {name: merged.pop(name) for name in list(merged) if _of_server(name)}
    named = {str(one["name"]): dict(one) for one in galleries}
    for table in tables:
        name = str(table.get("name", DEFAULT))
        named[name] = {**table, **named.get(name, {})}
    if named and (taken := [name for name in _OF_ONE if name in merged]):
        raise ConfigError(
            f"{where}: {taken[0]} is of one gallery, and there are others by name; give every "
            "gallery as NAME=LOCATION or in [[galleries]]"
        )
    each = [{**merged, **one} for one in named.values()] if named else [merged]
    if not named and "gallery" not in merged:
        each = []
    if len(each) > 1 and "uploads" in merged:
        raise ConfigError(f"{where}: several galleries cannot share uploads; give each its own")
    return Settings(
        galleries=tuple(construct(GallerySettings, one, where=where) for one in each),
        server=construct(ServerSettings, server, where=where, limits=limits),
    )


def _of_server(name: str) -> bool:
    """Also what is meant for it: so that the error names what was meant."""
    if name in {one.name for one in fields(GallerySettings)}:
        return False
    return bool(difflib.get_close_matches(name, _SERVER, n=1))


def _tables(tables: object, *, where: str) -> list[dict[str, Any]]:
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise ConfigError(f"{where}: galleries come as tables, each under [[galleries]]")
    for one in tables:
        if not isinstance(one.get("name"), str):
            raise ConfigError(f"{where}: each of [[galleries]] requires a name")
    names = [one["name"] for one in tables]
    if len(set(names)) < len(names):
        raise ConfigError(f"{where}: two of [[galleries]] have the same name")
    return list(tables)
