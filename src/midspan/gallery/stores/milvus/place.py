"""What a location says: milvus://user:token@host:19530/shop?shards=4&index=IVF_SQ8&nlist=4096."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from midspan.errors import GalleryError
from midspan.gallery.stores.settings import Settings
from midspan.gallery.stores.turns.names import check_name, hide_token

PORT = 19530
LEASE = 10.0  # see turns/head.py
INDEX_FROM = 100_000  # vectors; comparing fewer of them is fast enough, and exact
EF = 200  # candidates that HNSW keeps; the same in all stores
CONSISTENCY = {"strong": "Customized", "bounded": "Bounded", "eventually": "Eventually"}


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter of an index. Defaults: of the Milvus manual, unless said otherwise."""

    name: str
    default: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Kind:
    build: tuple[Knob, ...]
    search: Knob
    oversampling: float  # candidates for each that is wanted: distances of codes are rough


_NLIST = Knob("nlist", 1024, 1, 65_536)
_NPROBE = Knob("nprobe", 64, 1, 65_536)  # a sixteenth of the lists; the manual's 8 finds too little
KINDS: dict[str, Kind] = {
    # Values of the HNSW paper's range (arXiv:1603.09320, section 4.1): M 5 to 48, construction 100+
    "HNSW": Kind(
        (Knob("M", 24, 2, 2048), Knob("efConstruction", 200, 1, 32_768)),
        Knob("ef", EF, 1, 32_768),
        1.0,
    ),
    "IVF_FLAT": Kind((_NLIST,), _NPROBE, 1.0),
    "IVF_SQ8": Kind((_NLIST,), _NPROBE, 2.0),
    # m = 0 stands for a quarter of the dimensions: 8 bits for 4 numbers
    "IVF_PQ": Kind((_NLIST, Knob("m", 0, 0, 65_536), Knob("nbits", 8, 1, 16)), _NPROBE, 8.0),
    "DISKANN": Kind((), Knob("search_list", EF, 1, 65_535), 1.0),
}


@dataclass(frozen=True, slots=True)
class Place:
    uri: str
    token: str
    database: str
    name: str
    lease: float
    shown: str  # without the token: for messages and logs
    shards: int
    partitions: int  # 0: none
    consistency: str  # of searches; all else is always strong
    index: Mapping[str, Any]  # as Milvus takes it
    index_from: int
    breadth: int | None  # ef, nprobe or search_list, if given
    oversampling: float | None
    settings: Mapping[str, str]  # recorded with the gallery


def split_location(location: str) -> Place:
    """Host and name are enough."""
    parts = urlsplit(location)
    shown = hide_token(location)
    wanted = f"milvus://host:{PORT}/NAME"
    try:
        port = parts.port or PORT
    except ValueError as error:
        raise GalleryError(f"{shown}: {error}; wanted {wanted}") from error
    if not parts.hostname:
        raise GalleryError(f"{shown}: wanted {wanted}")
    name = check_name(parts.path.strip("/"), wanted=wanted, shown=shown)
    settings = Settings(location, shown=shown)
    secure = settings.flag("tls")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    token = unquote(parts.password or "")
    database = settings.text("database")
    lease = settings.number("lease", LEASE, 0.5, 600)
    shards = settings.whole("shards", 1, 1, 64, record=True)
    partitions = settings.whole("partitions", 0, 0, 1024, record=True)
    consistency = settings.choice("consistency", tuple(CONSISTENCY), "strong")
    index_from = settings.whole("index_from", INDEX_FROM, 1, 10**12)
    oversampling = settings.number("oversampling", 0, 0, 100) or None
    index = settings.choice("index", tuple(KINDS), "HNSW", record=True)
    kind = KINDS[index]
    params = {
        knob.name: settings.whole(knob.name, knob.default, knob.low, knob.high, record=True)
        for knob in kind.build
    }
    breadth = settings.whole("breadth", 0, 0, 65_536) or None
    settings.finish()
    return Place(
        uri=f"{'https' if secure else 'http'}://{host}:{port}",
        token=f"{unquote(parts.username)}:{token}" if parts.username else token,
        database=database,
        name=name,
        lease=lease,
        shown=shown,
        shards=shards,
        partitions=partitions,
        consistency=CONSISTENCY[consistency],
        index={"index_type": index, "params": params},
        index_from=index_from,
        breadth=breadth,
        oversampling=oversampling,
        settings=settings.recorded,
    )
