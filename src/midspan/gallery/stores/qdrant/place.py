"""What a location says.

qdrant://host:6333/shop?tls=true&shards=4&replicas=2     a server or cluster, by REST
qdrant+local:///folder/shop                              a folder, in this process alone
qdrant+local://:memory:/shop                             nothing is kept

The key of a server comes from the environment: QDRANT_API_KEY.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from midspan.errors import GalleryError
from midspan.gallery.stores.settings import Settings
from midspan.gallery.stores.turns.names import check_name

PORT = 6333
KEY = "QDRANT_API_KEY"
LEASE = 10.0  # see turns/head.py
EF = 200  # candidates that HNSW keeps; the same in all stores
MEMORY = ":memory:"


@dataclass(frozen=True, slots=True)
class Layout:
    """How collections are made; recorded with the gallery. Defaults: Qdrant's, unless said."""

    shards: int  # 1: Qdrant's own depends on the number of its nodes
    replicas: int
    write_consistency: int  # replicas that must have a write; the majority of them
    on_disk: bool  # vectors are read from disk, not held in memory
    int8: bool  # beside the vectors: codes of one byte a number, in memory, for a first look
    m: int  # HNSW
    ef_construct: int


@dataclass(frozen=True, slots=True)
class Look:
    """How a search looks."""

    ef: int
    rescore: bool  # what the codes found is compared by the vectors themselves
    oversampling: float  # found by codes, for each that is wanted


@dataclass(frozen=True, slots=True)
class Place:
    url: str | None  # of a server
    folder: str | None  # or a folder, or :memory:
    name: str
    lease: float
    shown: str
    layout: Layout
    look: Look
    settings: Mapping[str, str]  # recorded with the gallery


def split_location(location: str) -> Place:
    parts = urlsplit(location)
    local = parts.scheme == "qdrant+local"
    url, folder, name = _local(location) if local else _remote(location)
    settings = Settings(location, shown=location)
    lease = settings.number("lease", LEASE, 0.5, 600)
    if local:
        layout, look = _DEFAULTS
        _refuse_settings(location)
    else:
        secure = settings.flag("tls")
        url = f"{'https' if secure else 'http'}://{url}"
        layout = _layout(settings)
        look = Look(
            ef=settings.whole("ef", EF, 1, 65_536),
            rescore=settings.choice("rescore", ("true", "false"), "true") == "true",
            oversampling=settings.number("oversampling", 2.0, 1, 100),
        )
    settings.finish()
    return Place(url, folder, name, lease, location, layout, look, settings.recorded)


def _layout(settings: Settings) -> Layout:
    replicas = settings.whole("replicas", 1, 1, 64, record=True)
    majority = replicas // 2 + 1
    kind = settings.choice("quantisation", ("none", "int8"), "none", record=True)
    return Layout(
        shards=settings.whole("shards", 1, 1, 4096, record=True),
        replicas=replicas,
        write_consistency=settings.whole("write_consistency", majority, 1, replicas, record=True),
        on_disk=settings.flag("on_disk", record=True),
        int8=kind == "int8",
        m=settings.whole("m", 16, 0, 2048, record=True),
        ef_construct=settings.whole("ef_construct", 100, 4, 65_536, record=True),
    )


_DEFAULTS = (Layout(1, 1, 1, False, False, 16, 100), Look(EF, True, 1.0))


def _remote(location: str) -> tuple[str, None, str]:
    parts = urlsplit(location)
    wanted = f"qdrant://host:{PORT}/NAME"
    if parts.username is not None or parts.password is not None:
        hidden = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise GalleryError(f"{hidden}: a key does not belong into a location; set {KEY}")
    try:
        port = parts.port or PORT
    except ValueError as error:
        raise GalleryError(f"{location}: {error}; wanted {wanted}") from error
    if not parts.hostname:
        raise GalleryError(f"{location}: wanted {wanted}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    name = check_name(parts.path.strip("/"), wanted=wanted, shown=location)
    return f"{host}:{port}", None, name


def _local(location: str) -> tuple[None, str, str]:
    parts = urlsplit(location)
    wanted = "qdrant+local:///FOLDER/NAME or qdrant+local://:memory:/NAME"
    folder, _, name = unquote(parts.path).rpartition("/")
    check_name(name, wanted=wanted, shown=location)
    if parts.netloc == MEMORY and not folder:
        return None, MEMORY, name
    if parts.netloc or not folder:
        raise GalleryError(f"{location}: wanted {wanted}, the folder from the root on")
    return None, folder, name


def _refuse_settings(location: str) -> None:
    """Local mode compares every vector in one place: it would pass over them in silence."""
    settings = Settings(location, shown=location)
    _layout(settings)
    if settings.recorded:
        raise GalleryError(
            f"{location}: {min(settings.recorded)} means something on a server only; leave it out"
        )
