"""The connection to a Milvus server, and its errors in plain words."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from midspan.errors import GalleryError, MissingDependency, StoreError

SCHEME = "milvus"
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
NAME_CHARACTERS = 40
PORT = 19530
SECONDS = 20.0  # after which an answer is no longer waited for
LOAD_SECONDS = 120.0
LEASE = 10.0  # see turns.py
MOST = 16_384  # rows that Milvus gives back at once
ROWS = 1000  # of a size that may be up to 128 kB each
INSERT_ROWS = 2000
INSERT_BYTES = 4_000_000

NOT_FOUND = 100  # Milvus' codes: no such collection,
NO_ALIAS = 1600  # no such alias,
ALIAS_TAKEN = (1601, 1602)  # the name is taken by a collection, by an alias

Row = dict[str, Any]


class Refused(StoreError):
    """The server answered, and said no."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Place:
    """What a location says."""

    uri: str
    token: str
    database: str
    name: str
    lease: float
    shown: str  # without the token: for messages and logs


def split_location(location: str) -> Place:
    """milvus://user:token@host:19530/shop?database=photos&lease=10, most of it optional."""
    parts = urlsplit(location)
    shown = hide_token(location)
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    name = parts.path.strip("/")
    try:
        port = parts.port or PORT
        lease = float(settings.pop("lease", LEASE))
    except ValueError as error:
        raise GalleryError(f"{shown}: {error}; wanted milvus://host:{PORT}/shop") from error
    if not parts.hostname or not NAME.fullmatch(name) or len(name) > NAME_CHARACTERS:
        raise GalleryError(
            f"{shown}: wanted milvus://host:{PORT}/NAME with a name of up to {NAME_CHARACTERS} "
            "small letters, digits and single underscores"
        )
    if not 0.5 <= lease <= 600:
        raise GalleryError(f"{shown}: lease={lease:g}; wanted 0.5 to 600 seconds")
    database = settings.pop("database", "")
    secure = settings.pop("tls", "false")
    if settings or secure not in ("true", "false"):
        raise GalleryError(
            f"{shown}: unknown setting {next(iter(settings), 'tls')!r}; there are database=NAME, "
            "tls=true and lease=SECONDS"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    token = unquote(parts.password or "")
    return Place(
        uri=f"{'https' if secure == 'true' else 'http'}://{host}:{port}",
        token=f"{unquote(parts.username)}:{token}" if parts.username else token,
        database=database,
        name=name,
        lease=lease,
        shown=shown,
    )


def hide_token(location: str) -> str:
    parts = urlsplit(location)
    user, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}").geturl()


class Server:
    """A few verbs on collections. Every read waits until it sees all that happened up to `time`."""

    def __init__(self, location: str) -> None:
        try:
            import pymilvus  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingDependency(
                "pymilvus", extra="milvus", wanted_for="a gallery in Milvus"
            ) from error
        # It prints a trace for each error, also for those that are part of taking turns.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self.place = split_location(location)
        self.shown = self.place.shown
        self._error: type[Exception] = pymilvus.MilvusException
        self.types: Any = pymilvus.DataType
        self._process = os.getpid()
        self._open = True
        with self.errors():
            self._client: Any = pymilvus.MilvusClient(
                uri=self.place.uri,
                token=self.place.token,
                db_name=self.place.database,
                timeout=SECONDS,
            )

    def close(self) -> None:
        if self._open:
            self._open = False
            self._client.close()

    @property
    def client(self) -> Any:
        if not self._open:
            raise StoreError(f"{self.shown}: this gallery is closed")
        if os.getpid() != self._process:
            raise StoreError(f"{self.shown}: opened by another process; open it again after a fork")
        return self._client

    @contextmanager
    def errors(self) -> Iterator[None]:
        import grpc  # type: ignore[import-untyped]

        try:
            yield
        except (self._error, grpc.RpcError, ConnectionError) as error:
            raise self.in_words(error) from error

    def in_words(self, error: Exception) -> StoreError:
        code = getattr(error, "code", None)
        if isinstance(code, int) and not isinstance(code, bool) and code > 2:
            return Refused(f"{self.shown}: {_first_line(error)}", code=code)
        return StoreError(
            f"{self.shown}: the server cannot be reached or broke off ({_first_line(error)}); "
            "what was not acknowledged may be repeated"
        )

    # ---- rows

    def now(self) -> int:
        """The server's hybrid time: later than all that it acknowledged so far."""
        with self.errors():
            return int(self.client._get_connection().alloc_timestamp(timeout=SECONDS))

    def clock(self) -> float:
        """Seconds since 1970 by the server's clock: those of the workers differ."""
        return (self.now() >> 18) / 1000 or time.time()

    def query(
        self, collection: str, where: str, fields: Sequence[str], *, time: int, limit: int = 0
    ) -> list[Row]:
        """By rising primary key if there is a limit."""
        with self.errors():
            rows = self.client.query(
                collection,
                filter=where,
                output_fields=list(fields),
                timeout=SECONDS,
                consistency_level="Customized",
                guarantee_timestamp=time,
                **({"limit": limit} if limit else {}),
            )
        return list(rows)

    def count(self, collection: str, where: str, *, time: int) -> int:
        return int(self.query(collection, where, ["count(*)"], time=time)[0]["count(*)"])

    def search(
        self,
        collection: str,
        vectors: Any,
        where: str,
        *,
        limit: int,
        params: Row,
        time: int,
    ) -> list[list[Row]]:
        """(distance, row, pk, vector) of the nearest, for each query vector."""
        with self.errors():
            found = self.client.search(
                collection,
                data=list(vectors),
                filter=where,
                limit=limit,
                output_fields=["row", "vector"],
                search_params=params,
                timeout=SECONDS,
                consistency_level="Customized",
                guarantee_timestamp=time,
            )
        return [
            [
                {
                    "pk": hit["id"] if "id" in hit else hit["pk"],  # by its version
                    "distance": hit["distance"],
                    "row": hit["entity"]["row"],
                    "vector": hit["entity"]["vector"],
                }
                for hit in hits
            ]
            for hits in found
        ]

    def insert(self, collection: str, rows: Iterable[Row], *, beat: Callable[[], None]) -> None:
        """In portions; `beat` is called after each."""
        for portion in _portions(rows):
            with self.errors():
                self.client.insert(collection, portion, timeout=SECONDS)
            beat()

    def delete(self, collection: str, keys: Sequence[str | int]) -> None:
        for start in range(0, len(keys), INSERT_ROWS):
            part = list(keys[start : start + INSERT_ROWS])
            with self.errors():
                self.client.delete(collection, filter=f"pk in {listed(part)}", timeout=SECONDS)

    # ---- collections

    def described(self, alias: str) -> str | None:
        """The present name of the collection behind an alias."""
        try:
            with self.errors():
                found = self.client.describe_alias(alias, timeout=SECONDS)
        except Refused as error:
            if error.code in (NOT_FOUND, NO_ALIAS):
                return None
            raise
        return str(found["collection_name"])

    def rename(self, before: str, after: str) -> bool:
        """False if there is none of that name: somebody else was faster."""
        try:
            with self.errors():
                self.client.rename_collection(before, after, timeout=SECONDS)
        except Refused as error:
            if error.code == NOT_FOUND:
                return False
            raise
        return True

    def point(self, alias: str, collection: str) -> bool:
        """False if the alias is taken."""
        try:
            with self.errors():
                self.client.create_alias(collection, alias, timeout=SECONDS)
        except Refused as error:
            if error.code in ALIAS_TAKEN:
                return False
            raise
        return True

    def collections(self) -> list[str]:
        with self.errors():
            return list(self.client.list_collections(timeout=SECONDS))

    def age(self, collection: str) -> float:
        """Seconds since it was made, by the server's clock."""
        with self.errors():
            found = self.client.describe_collection(collection, timeout=SECONDS)
        return ((self.now() - int(found["created_timestamp"])) >> 18) / 1000

    def drop(self, collection: str) -> None:
        with self.errors():
            self.client.drop_collection(collection, timeout=SECONDS)


def listed(keys: Sequence[str | int]) -> str:
    """Keys of our own making: numbers, and texts of letters, digits, / and dots."""
    return "[" + ",".join(f'"{key}"' if isinstance(key, str) else str(key) for key in keys) + "]"


def _portions(rows: Iterable[Row]) -> Iterator[list[Row]]:
    portion, size = list[Row](), 0
    for row in rows:
        weight = 200 + len(row.get("body", "")) + 4 * len(row["vector"]) + row.pop("weight", 0)
        if portion and (size + weight > INSERT_BYTES or len(portion) == INSERT_ROWS):
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += weight
    if portion:
        yield portion


def _first_line(error: Exception) -> str:
    text = getattr(error, "message", "") or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0][:300]
