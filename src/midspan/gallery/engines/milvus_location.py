"""What a location says.

milvus://user:token@host:19530/shop?shards=4&index=IVF_SQ8&nlist=4096     a server or cluster
milvus+lite:///folder/vectors.db/shop                                     Milvus Lite: one process
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from midspan.errors import GalleryError
from midspan.gallery.engines.remote import check_name
from midspan.gallery.location import Location, LocationSettings

PORT = 19530
INDEX_FROM = 100_000  # vectors; comparing fewer of them is fast enough, and exact
EF = 200  # candidates that HNSW keeps; the same in all engines
CONSISTENCY = {"strong": "Strong", "bounded": "Bounded", "eventually": "Eventually"}
PQ_PART = 4  # numbers that one code of IVF_PQ stands for, if m is not given


@dataclass(frozen=True, slots=True)
class IndexParameter:
    """A parameter of an index. Defaults: of the Milvus manual, unless said otherwise."""

    name: str
    default: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class IndexKind:
    build: tuple[IndexParameter, ...]
    search: IndexParameter
    oversampling: float  # candidates for each one asked for: distances of codes are rough


_NLIST = IndexParameter("nlist", 1024, 1, 65_536)
_NPROBE = IndexParameter(
    "nprobe", 64, 1, 65_536
)  # a sixteenth of the lists; the manual's 8 finds too little
KINDS: dict[str, IndexKind] = {
    # Values of the HNSW paper's range (arXiv:1603.09320, section 4.1): M 5 to 48, construction 100+
    "HNSW": IndexKind(
        (IndexParameter("M", 24, 2, 2048), IndexParameter("efConstruction", 200, 1, 32_768)),
        IndexParameter("ef", EF, 1, 32_768),
        1.0,
    ),
    "IVF_FLAT": IndexKind((_NLIST,), _NPROBE, 1.0),
    "IVF_SQ8": IndexKind((_NLIST,), _NPROBE, 2.0),
    # m = 0 stands for a quarter of the dimensions: 8 bits for 4 numbers
    "IVF_PQ": IndexKind(
        (_NLIST, IndexParameter("m", 0, 0, 65_536), IndexParameter("nbits", 8, 1, 16)), _NPROBE, 8.0
    ),
    "DISKANN": IndexKind((), IndexParameter("search_list", EF, 1, 65_535), 1.0),
}


@dataclass(frozen=True, slots=True)
class MilvusLocation:
    uri: str  # of a server, or the path of Milvus Lite's folder
    local: bool
    token: str
    database: str
    name: str
    shards: int
    partitions: int  # 0: none
    consistency: str  # of searches; everything else is always strong
    kind: str
    params: Mapping[str, int]  # of the index
    index_from: int
    breadth: int | None  # ef, nprobe or search_list, if given
    oversampling: float
    recorded: Mapping[str, str]  # settings that shape what is stored

    def index(self, dim: int) -> dict[str, Any]:
        """As Milvus takes it; what depends on the space is filled in."""
        params = dict(self.params)
        if params.get("m") == 0:
            params["m"] = max(1, dim // PQ_PART)
        return {"index_type": self.kind, "params": params}

    def search_params(self, limit: int) -> dict[str, int]:
        """How far the index looks: what the location says, but never less than is asked for."""
        knob = KINDS[self.kind].search
        breadth = self.breadth or knob.default
        if knob.name == "nprobe":  # lists, not candidates
            return {knob.name: min(breadth, self.params["nlist"])}
        return {knob.name: min(max(breadth, 2 * limit), knob.high)}


def milvus_location(
    location: Location, *, created_with: Mapping[str, str] | None = None
) -> MilvusLocation:
    url, shown = location.url, location.shown
    parts = urlsplit(url)
    local = parts.scheme == "milvus+lite"
    settings = LocationSettings(location.settings, shown=shown, created_with=created_with)
    uri, name = _lite(url, shown) if local else _server(url, shown, settings)
    index = settings.choice("index", tuple(KINDS), "HNSW", record=True)
    kind, token = KINDS[index], unquote(parts.password or "")
    parsed = MilvusLocation(
        uri=uri,
        local=local,
        token=f"{unquote(parts.username)}:{token}" if parts.username else token,
        database="" if local else settings.text("database"),
        name=name,
        shards=1 if local else settings.whole("shards", 1, 1, 64, record=True),
        partitions=0 if local else settings.whole("partitions", 0, 0, 1024, record=True),
        consistency=CONSISTENCY[settings.choice("consistency", tuple(CONSISTENCY), "strong")],
        kind=index,
        params={
            knob.name: settings.whole(knob.name, knob.default, knob.low, knob.high, record=True)
            for knob in kind.build
        },
        index_from=settings.whole("index_from", INDEX_FROM, 1, 10**12),
        breadth=settings.whole("breadth", 0, 0, 65_536) or None,
        oversampling=settings.number("oversampling", 0, 0, 100) or kind.oversampling,
        recorded=settings.recorded,
    )
    settings.finish()
    return parsed


def _server(url: str, shown: str, settings: LocationSettings) -> tuple[str, str]:
    parts = urlsplit(url)
    expected = f"milvus://host:{PORT}/NAME"
    try:
        port = parts.port or PORT
    except ValueError as error:
        raise GalleryError(f"{shown}: {error}; expected {expected}") from error
    if not parts.hostname:
        raise GalleryError(f"{shown}: expected {expected}")
    name = check_name(parts.path.strip("/"), expected=expected, shown=shown)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    secure = settings.flag("tls")
    return f"{'https' if secure else 'http'}://{host}:{port}", name


def _lite(url: str, shown: str) -> tuple[str, str]:
    parts = urlsplit(url)
    expected = "milvus+lite:///FOLDER/FILE.db/NAME"
    path = PurePosixPath(unquote(parts.path))
    if parts.netloc or path.parent.suffix != ".db":
        raise GalleryError(f"{shown}: expected {expected}, the folder from the root on")
    return str(path.parent), check_name(path.name, expected=expected, shown=shown)
