"""Where a gallery is. One text names the engine and the catalogue:

shop.midspan                                            a file: both
postgresql://user@host/database?table=shop              PostgreSQL: both
postgresql://…?table=shop&read=postgresql://replica/db  the same; a replica answers searches
qdrant://host:6333/shop?catalogue=shop.db               Qdrant; the catalogue is a file
milvus://host:19530/shop?catalogue=postgresql://…       Milvus; the catalogue is in PostgreSQL
qdrant+local:///folder/shop?catalogue=shop.db           Qdrant's local mode: one process
milvus+lite:///folder/vectors.db/shop?catalogue=shop.db Milvus Lite: one process
memory:                                                 nothing is kept

A catalogue in PostgreSQL is a location of its own, so it is written with %26 for its own `&`, and
its table defaults to the name of the collection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from midspan.errors import GalleryError

TABLE = re.compile(r"[a-z][a-z0-9_]{0,39}")
FILE, MEMORY, POSTGRES = "embedded", "memory", "postgresql"
SERVERS = ("qdrant", "qdrant+local", "milvus", "milvus+lite")
FIRST_LAYOUT = (  # what to do with a gallery of Milvus or Qdrant that has no catalogue
    "With the midspan that made it, copy it to a file (midspan gallery copy … shop.midspan), and "
    "copy that file to its new place with this one"
)
SECRET = ("password", "token", "key")


@dataclass(frozen=True, slots=True)
class CatalogueLocation:
    """`path` of a SQLite file, or `url` and `table` in PostgreSQL, or neither: in memory."""

    path: Path | None = None
    url: str | None = field(default=None, repr=False)
    table: str = ""

    @property
    def in_postgresql(self) -> bool:
        return self.url is not None


@dataclass(frozen=True, slots=True)
class Location:
    scheme: str  # a key of ENGINES
    url: str = field(repr=False)  # as given, without ?…; may hold secrets
    name: str  # of the collection, of the table, of the file
    catalogue: CatalogueLocation
    settings: Mapping[str, str] = field(default_factory=dict)  # the engine's ?name=value
    shown: str = ""  # without secrets: for messages and logs
    read: CatalogueLocation | None = None  # the replica that answers searches


def parse_location(text: str | Path) -> Location:
    text = str(text) if isinstance(text, Path) else text
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise GalleryError(f"{text!r} is no place for a gallery; give a file: shop.midspan")
    if text.startswith("memory:"):
        return Location(MEMORY, text, text.partition(":")[2], CatalogueLocation(), shown=text)
    scheme, separator, _ = text.partition("://")
    if not separator:
        path = Path(text)
        return Location(FILE, text, path.name, CatalogueLocation(path=path), shown=text)
    shown = hide_secrets(text)
    if scheme in ("postgresql", "postgres"):
        place, settings = _postgresql(text, shown)
        read = _replica(settings.pop("read", None), place, shown)
        return Location(POSTGRES, text, place.table, place, settings, shown, read)
    if scheme in SERVERS:
        return _server(scheme, text, shown)
    raise GalleryError(
        f"{shown}: there is no engine {scheme!r}; expected a file or one of "
        f"{', '.join(f'{one}://' for one in (POSTGRES, *SERVERS))}"
    )


LIBPQ = {  # what belongs to libpq; the rest are settings of ours
    "host", "hostaddr", "port", "dbname", "user", "password", "passfile", "connect_timeout",
    "options", "application_name", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword",
    "channel_binding", "target_session_attrs", "keepalives", "keepalives_idle", "krbsrvname",
    "service", "gssencmode", "tcp_user_timeout", "load_balance_hosts", "sslcrl", "requiressl",
}  # fmt: skip


def _postgresql(
    text: str, shown: str, *, default: str = ""
) -> tuple[CatalogueLocation, dict[str, str]]:
    parts = urlsplit(text)
    pairs = _pairs(parts.query, shown)
    table = pairs.pop("table", default)
    if not TABLE.fullmatch(table):
        raise GalleryError(
            f"{shown}: expected …?table=NAME with a name of up to 40 small letters, digits and "
            f"underscores, got {table!r:.60}"
        )
    ours = {name: value for name, value in pairs.items() if name not in LIBPQ}
    libpq = {name: value for name, value in pairs.items() if name in LIBPQ}
    theirs = urlencode(libpq, quote_via=quote)  # for libpq a plus is no blank
    url = f"postgresql://{parts.netloc}{parts.path}{'?' if theirs else ''}{theirs}"
    return CatalogueLocation(url=url, table=table), ours


def _replica(text: str | None, place: CatalogueLocation, shown: str) -> CatalogueLocation | None:
    if text is None:
        return None
    if not text.startswith(("postgresql://", "postgres://")):
        raise GalleryError(f"{shown}: expected read=postgresql://…, a replica of this database")
    read, more = _postgresql(text, hide_secrets(text), default=place.table)
    if more or read.table != place.table:
        name = min(more, default="table")
        raise GalleryError(f"{shown}: {name!r} is a setting of the gallery, not of its read=…")
    return read


def _server(scheme: str, text: str, shown: str) -> Location:
    parts = urlsplit(text)
    settings = _pairs(parts.query, shown)
    name = parts.path.rstrip("/").rpartition("/")[2]
    catalogue = settings.pop("catalogue", "")
    if not catalogue:
        raise GalleryError(
            f"{shown}: expected …?catalogue=shop.db (a file) or ?catalogue=postgresql://…: the "
            "engine keeps the vectors, the catalogue keeps the items. A gallery that was made "
            f"without one has the first layout, which this version does not read. {FIRST_LAYOUT}"
        )
    if catalogue.startswith("memory:"):
        place = CatalogueLocation()
    elif "://" in catalogue:
        if not catalogue.startswith(("postgresql://", "postgres://")):
            raise GalleryError(f"{shown}: a catalogue is a file or postgresql://…")
        table = re.sub(r"[^a-z0-9_]", "_", name.lower())
        place, extra = _postgresql(catalogue, hide_secrets(catalogue), default=table)
        if extra:
            raise GalleryError(f"{shown}: the catalogue has no setting {min(extra)!r}")
    else:
        place = CatalogueLocation(path=Path(catalogue))
    return Location(scheme, text.partition("?")[0], name, place, settings, shown)


def _pairs(query: str, shown: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise GalleryError(f"{shown}: {name} is given twice")
    return dict(pairs)


def hide_secrets(text: str) -> str:
    """What may stand in messages and logs."""
    parts = urlsplit(text)
    user, at, host = parts.netloc.rpartition("@")
    settings = [
        (key, _hidden(key, value)) for key, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    netloc = f"{user.partition(':')[0]}{at}{host}"
    query = urlencode(settings, safe="/:…?@")
    return f"{parts.scheme}://{netloc}{parts.path}{'?' if query else ''}{query}"


def _hidden(key: str, value: str) -> str:
    if any(word in key.lower() for word in SECRET):
        return "…"
    return hide_secrets(value) if "://" in value else value


# ---- the ?name=value of a location ---------------------------------------------------------------


class LocationSettings:
    """`made`: what a gallery was made with. It stands for settings that are left out, and one that
    says otherwise is refused."""

    def __init__(
        self, given: Mapping[str, str], *, shown: str, created_with: Mapping[str, str] | None = None
    ) -> None:
        self._given = dict(given)
        self._shown = shown
        self._created_with = created_with
        self._asked: list[str] = []
        self.recorded: dict[str, str] = {}  # those that shape what is stored

    def text(self, name: str, default: str = "", *, record: bool = False) -> str:
        self._asked.append(name)
        value = self._given.pop(name, None)
        if record and self._created_with is not None:
            check_created_with(
                {} if value is None else {name: value}, self._created_with, shown=self._shown
            )
            value = self._created_with.get(name)
        if value is None:
            return default
        if record:
            self.recorded[name] = value
        return value

    def choice(
        self, name: str, choices: Sequence[str], default: str, *, record: bool = False
    ) -> str:
        value = self.text(name, default, record=record)
        if value not in choices:
            raise GalleryError(f"{self._shown}: {name}={value}; expected {' or '.join(choices)}")
        return value

    def flag(self, name: str, *, record: bool = False) -> bool:
        return self.choice(name, ("false", "true"), "false", record=record) == "true"

    def number(
        self, name: str, default: float, low: float, high: float, *, record: bool = False
    ) -> float:
        value = self.text(name, repr(default), record=record)
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise GalleryError(f"{self._shown}: {name}={value}; expected {low:g} to {high:g}")
        return number

    def whole(self, name: str, default: int, low: int, high: int, *, record: bool = False) -> int:
        number = self.number(name, default, low, high, record=record)
        if number != int(number):
            raise GalleryError(f"{self._shown}: {name}={number:g}; expected a whole number")
        return int(number)

    def finish(self) -> None:
        if self._given:
            name = min(self._given)
            raise GalleryError(
                f"{self._shown}: unknown setting {name!r}; there are {', '.join(self._asked)}"
            )


def check_created_with(
    given: Mapping[str, str], created_with: Mapping[str, str], *, shown: str
) -> None:
    """What a location says of the tables must be what they were made with."""
    for name, value in given.items():
        if created_with.get(name) != value:
            raise GalleryError(
                f"{shown}: {name}={value}, but this gallery was made with "
                f"{name}={created_with.get(name, 'its default')}; leave the setting out, or copy "
                "the gallery to a new place with midspan gallery copy"
            )
