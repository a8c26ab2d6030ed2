"""The client, local or of a server, and its errors in plain words."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from midspan.errors import MissingDependency, StoreError
from midspan.gallery.stores.qdrant.local import Shared, alone, close_local, open_local
from midspan.gallery.stores.qdrant.place import KEY, Place, split_location
from midspan.gallery.stores.turns.engine import Gone, Refused
from midspan.gallery.stores.turns.handle import Handle

SECONDS = 20  # after which an answer is no longer waited for
FIRST = (1, 16)  # the first version with conditional updates


class Connection:
    def __init__(self, location: str) -> None:
        try:
            import qdrant_client
        except ImportError as error:
            raise MissingDependency(
                "qdrant-client", extra="qdrant", wanted_for="a gallery in Qdrant"
            ) from error
        self.place: Place = split_location(location)
        self.shown = self.place.shown
        self._handle = Handle(self.shown)
        self._shared: Shared | None = None
        if self.place.folder is not None:
            with self.errors():
                self._shared = open_local(self.place.folder)
            self._client: Any = self._shared.client
            return
        self._client = qdrant_client.QdrantClient(
            url=self.place.url,
            api_key=os.environ.get(KEY),
            timeout=SECONDS,
            check_compatibility=False,
        )
        with self.errors():
            self._check_version(str(self._client.info().version))

    @property
    def local(self) -> bool:
        return self._shared is not None

    def close(self) -> None:
        if not self._handle.open:
            return
        self._handle.open = False
        if self.place.folder is not None:
            close_local(self.place.folder)
        else:
            self._client.close()

    @property
    def client(self) -> Any:
        self._handle.check()
        return self._client

    def reading(self) -> dict[str, Any]:
        """With several replicas, what most of them say."""
        return {"consistency": "majority"} if self.place.layout.replicas > 1 else {}

    def _check_version(self, version: str) -> None:
        numbers = version.split("-", maxsplit=1)[0].split(".")
        if tuple(int(number) for number in numbers[:2]) < FIRST:
            raise StoreError(
                f"{self.shown}: this is Qdrant {version}; wanted {'.'.join(map(str, FIRST))} or "
                "later, which has conditional updates: without them writers would get into each "
                "other's way"
            )

    @contextmanager
    def errors(self) -> Iterator[None]:
        from qdrant_client.common.client_exceptions import QdrantException
        from qdrant_client.http.exceptions import ApiException

        try:
            with alone(self._shared):
                yield
        except (ApiException, QdrantException, ConnectionError) as error:
            raise self._in_words(error) from error
        except (ValueError, RuntimeError, OSError, sqlite3.Error) as error:  # of local mode
            if "not found" in str(error):
                raise Gone(f"{self.shown}: {error}") from error
            raise StoreError(f"{self.shown}: {_first_line(error)}") from error

    def _in_words(self, error: Exception) -> StoreError:
        status = getattr(error, "status_code", None)
        if status == 404:
            return Gone(f"{self.shown}: {_first_line(error)}")
        if status is not None and status < 500:
            return Refused(f"{self.shown}: {_said(error)}")
        source = getattr(error, "source", error)
        return StoreError(
            f"{self.shown}: the server cannot be reached or broke off ({_first_line(source)}); "
            "what was not acknowledged may be repeated"
        )


def _said(error: Any) -> str:
    """What the server wrote about it."""
    try:
        return str(error.structured()["status"]["error"])[:300]
    except (ValueError, KeyError, TypeError):
        return _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
