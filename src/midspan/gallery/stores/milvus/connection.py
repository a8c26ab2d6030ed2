"""The connection to a Milvus server, and its errors in plain words."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from midspan.errors import MissingDependency, StoreError
from midspan.gallery.stores.milvus.place import Place, split_location
from midspan.gallery.stores.turns.engine import Beat, Gone, Refused, Row
from midspan.gallery.stores.turns.handle import Handle
from midspan.gallery.stores.turns.portions import portions

SECONDS = 20.0  # after which an answer is no longer waited for
LOAD_SECONDS = 120.0
INSERT_ROWS = 2000
INSERT_BYTES = 4_000_000

NOT_FOUND = 100  # Milvus' codes: no such collection,
NO_ALIAS = 1600  # no such alias,
ALIAS_TAKEN = (1601, 1602)  # the name is taken by a collection, by an alias


class Coded(Refused):
    """With Milvus' number for what is wrong."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class Connection:
    def __init__(self, location: str) -> None:
        try:
            import pymilvus  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingDependency(
                "pymilvus", extra="milvus", wanted_for="a gallery in Milvus"
            ) from error
        # It prints a trace for each error, also for those that are part of taking turns.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self.place: Place = split_location(location)
        self.shown = self.place.shown
        self._error: type[Exception] = pymilvus.MilvusException
        self.types: Any = pymilvus.DataType
        self._handle = Handle(self.shown)
        with self.errors():
            self._client: Any = pymilvus.MilvusClient(
                uri=self.place.uri,
                token=self.place.token,
                db_name=self.place.database,
                timeout=SECONDS,
            )
            warn_of(str(self._client.get_server_version(timeout=SECONDS)), shown=self.shown)

    def close(self) -> None:
        if self._handle.open:
            self._handle.open = False
            self._client.close()

    @property
    def client(self) -> Any:
        self._handle.check()
        return self._client

    @contextmanager
    def errors(self) -> Iterator[None]:
        import grpc  # type: ignore[import-untyped]

        try:
            yield
        except (self._error, grpc.RpcError, ConnectionError) as error:
            raise self._in_words(error) from error

    def _in_words(self, error: Exception) -> StoreError:
        code = getattr(error, "code", None)
        if code == NOT_FOUND:
            return Gone(f"{self.shown}: {_first_line(error)}")
        if isinstance(code, int) and not isinstance(code, bool) and code > 2:
            return Coded(f"{self.shown}: {_first_line(error)}", code=code)
        return StoreError(
            f"{self.shown}: the server cannot be reached or broke off ({_first_line(error)}); "
            "what was not acknowledged may be repeated"
        )

    def now(self) -> int:
        """The server's hybrid time: later than all that it acknowledged so far."""
        with self.errors():
            return int(self.client._get_connection().alloc_timestamp(timeout=SECONDS))

    def put(self, collection: str, rows: Iterable[Row], *, beat: Beat) -> None:
        """In portions; `beat` is called after each."""
        for portion in portions(_sized(rows), rows=INSERT_ROWS, size=INSERT_BYTES):
            with self.errors():
                self.client.insert(collection, portion, timeout=SECONDS)
            beat()

    # ---- collections

    def described(self, alias: str) -> str | None:
        """The present name of the collection behind an alias."""
        try:
            with self.errors():
                found = self.client.describe_alias(alias, timeout=SECONDS)
        except Gone:
            return None
        except Coded as error:
            if error.code == NO_ALIAS:
                return None
            raise
        return str(found["collection_name"])

    def rename(self, before: str, after: str) -> bool:
        """False if there is none of that name: somebody else was faster."""
        try:
            with self.errors():
                self.client.rename_collection(before, after, timeout=SECONDS)
        except Gone:
            return False
        return True

    def point(self, alias: str, collection: str) -> bool:
        """False if the alias is taken."""
        try:
            with self.errors():
                self.client.create_alias(collection, alias, timeout=SECONDS)
        except Coded as error:
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


def _sized(rows: Iterable[Row]) -> Iterator[tuple[Row, int]]:
    for row in rows:
        weight = row.pop("weight", 0)
        yield row, 200 + len(row.get("body", "")) + 4 * len(row["vector"]) + weight


def warn_of(version: str, *, shown: str) -> None:
    """benchmarks/milvus_deletes.py shows it; milvus-io/milvus#32915 and #33015 are of users."""
    if version.lstrip("v").startswith("2.3."):
        warnings.warn(
            f"Milvus {version.lstrip('v')} at {shown} brings removed rows back now and then when "
            "it compacts its segments: items and work may be counted twice until the gallery is "
            "optimised; use a later server, or set dataCoord.enableCompaction: false",
            stacklevel=2,
        )


def _first_line(error: Exception) -> str:
    text = getattr(error, "message", "") or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0][:300]
