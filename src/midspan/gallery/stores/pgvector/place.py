"""What a location says: postgresql://…/db?table=shop&partitions=16&index=halfvec.

The rest of its settings goes to libpq.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from midspan.errors import GalleryError
from midspan.gallery.stores.settings import Settings

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True)
class Place:
    url: str  # for the server
    table: str  # what the names of the gallery's tables begin with
    partitions: int  # of each table of vectors, by the hash of the item; 0: one table
    half: bool  # the index holds numbers of two bytes; the vectors themselves stay as they are
    shown: str  # without passwords: for messages and logs
    settings: Mapping[str, str]  # recorded with the gallery


def split_location(location: str) -> Place:
    parts, shown = urlsplit(location), hide_password(location)
    settings = Settings(location, shown=shown)
    table = settings.text("table")
    if not NAME.fullmatch(table):
        raise GalleryError(
            f"{shown}: wanted …?table=NAME with a name of up to 40 small letters, digits and "
            "underscores"
        )
    partitions = settings.whole("partitions", 0, 0, 1024, record=True)
    kind = settings.choice("index", ("vector", "halfvec"), "vector", record=True)
    rest = urlencode(settings.left())
    return Place(
        url=urlunsplit(("postgresql", parts.netloc, parts.path, rest, "")),
        table=table,
        partitions=partitions,
        half=kind == "halfvec",
        shown=shown,
        settings=settings.recorded,
    )


def hide_password(location: str) -> str:
    """What may stand in messages and logs."""
    parts = urlsplit(location)
    user, at, host = parts.netloc.rpartition("@")
    settings = [
        (key, "…" if "password" in key.lower() else value)
        for key, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    netloc = f"{user.partition(':')[0]}{at}{host}"
    return urlunsplit((parts.scheme, netloc, parts.path, urlencode(settings, safe="/…"), ""))
