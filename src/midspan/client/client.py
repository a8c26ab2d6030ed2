"""`midspan.Client`: the verbs of a service, from Python.

with midspan.Client("http://127.0.0.1:8080") as client:
    for hit in client.search(image="chair.jpg", k=5, filter={"brand": "acme"}):
        print(hit.id, hit.score)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import sleep
from types import TracebackType
from typing import Any, Self

import numpy as np

from midspan.client.address import item_path
from midspan.client.events import parse_events
from midspan.client.portions import portions
from midspan.client.reading import read
from midspan.client.upgrade import UpgradeVerbs
from midspan.client.values import (
    AuditAnswer,
    AuditEntry,
    Comparison,
    Deleted,
    Event,
    GalleryInfo,
    Health,
    Hit,
    Item,
    ItemsPage,
    SearchAnswer,
    SearchManyAnswer,
    Verification,
    Written,
)
from midspan.client.wire import AGAIN, Call, Patience, Wire, as_json, back_off
from midspan.errors import (
    ConfigError,
    ImageError,
    ItemError,
    RequestError,
    Unreachable,
)
from midspan.spaces import Embeddings, FloatArray

Image = str | Path | bytes  # where it is, or its bytes as in the file
Vector = Sequence[float] | FloatArray
Filter = Mapping[str, Any]  # as in docs/gallery.md: {"price": {"$lt": 50}}

SILENCE = 45.0  # seconds; a service that lives sends a heartbeat every 15


class Client:
    """One service. Threads may share it; close it, or use it in `with`.

    token: of a reader or an admin. It is never sent over plain http beyond this machine, unless
    allow_http says that nobody else listens there.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        long_timeout: float = 600.0,
        retries: int = 4,
        longest_wait: float = 30.0,
        allow_http: bool = False,
    ) -> None:
        """Defaults are those of `Patience`; each call is tried once and `retries` times more."""
        if timeout <= 0 or long_timeout <= 0 or retries < 0 or longest_wait < 0:
            raise ConfigError("time-outs are more than 0 seconds, retries and longest_wait 0 or up")
        patience = Patience(
            timeout=timeout, long_timeout=long_timeout, retries=retries, longest_wait=longest_wait
        )
        self._wire = Wire(url, token, patience=patience, allow_http=allow_http)
        self.upgrade = UpgradeVerbs(self._wire)

    def __repr__(self) -> str:
        return f"Client({self._wire.url!r})"

    def close(self) -> None:
        self._wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- search

    def search(
        self,
        *,
        image: Image | None = None,
        id: str | None = None,
        vector: Vector | None = None,
        k: int = 10,
        filter: Filter | None = None,
        threshold: float | None = None,
        exact: bool = False,
        space: str | None = None,
    ) -> tuple[Hit, ...]:
        """The nearest items to an image, to a stored item (without itself) or to a vector.

        space: that of the vector, by fingerprint or name; default the one that queries come in.
        """
        if sum(query is not None for query in (image, id, vector)) != 1:
            raise ItemError("give one of image=, id= and vector=")
        options = _options(k, filter, threshold, exact)
        if image is not None:
            found = self._form("POST", "/v1/search/image", image, options)
        elif id is not None:
            found = self._post("/v1/search/item", {"id": id, **options})
        else:
            body = {"vector": np.asarray(vector).tolist(), "space": space, **options}
            found = self._post("/v1/search/vector", body)
        return read(SearchAnswer, found).results

    def search_many(
        self,
        vectors: Embeddings | Sequence[Vector] | FloatArray,
        *,
        k: int = 10,
        filter: Filter | None = None,
        threshold: float | None = None,
        exact: bool = False,
        space: str | None = None,
    ) -> tuple[tuple[Hit, ...], ...]:
        """Several vectors in one request, at most 256; embeddings bring their own space."""
        if isinstance(vectors, Embeddings):
            space = vectors.space.fingerprint
        rows = vectors.vectors if isinstance(vectors, Embeddings) else vectors
        body = {"vectors": [np.asarray(row).tolist() for row in rows], "space": space}
        found = self._post("/v1/search/vector", {**body, **_options(k, filter, threshold, exact)})
        return read(SearchManyAnswer, found).results

    def compare(
        self,
        *,
        image: Image | None = None,
        id: str | None = None,
        k: int = 10,
        filter: Filter | None = None,
        threshold: float | None = None,
        exact: bool = False,
    ) -> Comparison:
        """The same query before and after the upgrade that is going on."""
        if (image is None) == (id is None):
            raise ItemError("give either image= or id=")
        options, path = _options(k, filter, threshold, exact), "/v1/search/compare"
        if image is not None:
            return read(Comparison, self._form("POST", path, image, options))
        return read(Comparison, self._post(path, {"id": id, **options}))

    # ---- items

    def items(self, *, filter: Filter | None = None, page: int = 500) -> Iterator[Item]:
        """All of them by id, asked for page by page."""
        params = {"limit": str(page)}
        if filter is not None:
            params["filter"] = as_json(filter).decode()
        after: str | None = ""
        while after is not None:
            found = read(ItemsPage, self._get("/v1/items", {**params, "after": after}))
            yield from found.items
            after = found.next

    def get(self, id: str) -> Item:
        return read(Item, self._get(item_path("/v1/items", id)))

    def put(
        self,
        id: str,
        *,
        image: Image | None = None,
        vector: Vector | None = None,
        payload: Mapping[str, Any] | None = None,
        uri: str | None = None,
        space: str | None = None,
    ) -> Written:
        """Add or replace one: its image, which the service embeds, or a vector made elsewhere."""
        path, payload = item_path("/v1/items", id), dict(payload or {})
        if (image is None) == (vector is None):
            raise ItemError("give either image= or vector=")
        if image is not None:
            if uri is not None or space is not None:
                raise ItemError("uri= and space= go with vector=; the service keeps the image")
            fields = {"payload": payload}
            return read(Written, self._form("PUT", path, image, fields, write=True))
        body = {"vector": np.asarray(vector).tolist(), "payload": payload, "uri": uri}
        return read(Written, self._write("PUT", path, {**body, "space": space}))

    def add(
        self,
        embeddings: Embeddings,
        *,
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """New items with their vectors; an id that is there already is an error.

        At most 2,000 go in one request, which is done whole or not at all.
        """
        return self._write_items("add", embeddings, uris=uris, payloads=payloads)

    def replace(
        self,
        embeddings: Embeddings,
        *,
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """As `add`, for items that are there; an unknown id is an error."""
        return self._write_items("replace", embeddings, uris=uris, payloads=payloads)

    def annotate(self, id: str, payload: Mapping[str, Any]) -> Item:
        """Another payload; image and vectors stay."""
        path = item_path("/v1/items", id)
        return read(Item, self._write("PATCH", path, {"payload": dict(payload)}))

    def delete(self, id: str) -> bool:
        """Whether it was there."""
        call = Call(method="DELETE", path=item_path("/v1/items", id), write=True)
        return read(Deleted, self._wire.json(call)).deleted > 0

    def thumbnail(self, id: str, *, size: int = 160) -> bytes:
        """PNG or JPEG."""
        path = item_path("/v1/thumbnails", id)
        return self._wire.send(Call(method="GET", path=path, params={"size": str(size)})).content

    # ---- the gallery and the service

    def info(self) -> GalleryInfo:
        return read(GalleryInfo, self._get("/v1/gallery"))

    def verify(self) -> Verification:
        """Look at every item and vector; changes nothing."""
        path = "/v1/gallery/verify"
        return read(Verification, self._wire.json(Call(method="GET", path=path, slow=True)))

    def audit(self, *, limit: int = 100) -> tuple[AuditEntry, ...]:
        """Who did what and when, newest first. Wants the admin token."""
        return read(AuditAnswer, self._get("/v1/audit", {"limit": str(limit)})).entries

    def events(self, *, heartbeats: bool = False) -> Iterator[Event]:
        """`gallery` and `upgrade` as they are now, then whenever they change; without an end.

        A lost connection is made again, and begins with how things are then.
        """
        failed = 0
        while True:
            try:
                call = Call(method="GET", path="/v1/events")
                with self._wire.stream(call, timeout=SILENCE) as lines:
                    for event in parse_events(lines):
                        failed = 0
                        if heartbeats or event.name != "heartbeat":
                            yield event
            except RequestError as error:
                failed += 1
                worth = isinstance(error, Unreachable) or error.status in AGAIN
                if not worth or failed > self._wire.patience.retries:
                    raise
            sleep(back_off(1 + failed))

    def health(self) -> bool:
        """The service answers."""
        return read(Health, self._get("/healthz")).status == "ok"

    def ready(self) -> bool:
        """Its gallery answers too. Asked once."""
        try:
            self._wire.send(Call(method="GET", path="/readyz", once=True))
        except RequestError as error:
            if isinstance(error, Unreachable) or error.status == 503:
                return False
            raise
        return True

    def metrics(self) -> str:
        """For Prometheus."""
        return self._wire.send(Call(method="GET", path="/metrics")).text

    def openapi(self) -> dict[str, Any]:
        """The service's own description."""
        return read(dict[str, Any], self._get("/openapi.json"))

    # ---- how

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return self._wire.json(Call(method="GET", path=path, params=params))

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        """A question that has a body."""
        return self._wire.json(Call(method="POST", path=path, body=as_json(body)))

    def _write(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        return self._wire.json(Call(method=method, path=path, body=as_json(body), write=True))

    def _form(
        self,
        method: str,
        path: str,
        image: Image,
        fields: Mapping[str, Any],
        *,
        write: bool = False,
    ) -> Any:
        texts = {name: _as_text(value) for name, value in fields.items() if value is not None}
        call = Call(method=method, path=path, image=_bytes(image), fields=texts, write=write)
        return self._wire.json(call)

    def _write_items(
        self,
        mode: str,
        embeddings: Embeddings,
        *,
        uris: Sequence[str | None] | None,
        payloads: Sequence[Mapping[str, Any]] | None,
    ) -> int:
        for name, column in (("uris", uris), ("payloads", payloads)):
            if column is not None and len(column) != len(embeddings):
                raise ItemError(f"{len(column)} {name} for {len(embeddings)} items; give one each")
        whole = {"space": embeddings.space.fingerprint, "mode": mode}
        written = 0
        for items in portions(embeddings, uris=uris, payloads=payloads):
            found = self._write("POST", "/v1/items", {**whole, "items": items})
            written += read(Written, found).written
        return written


def _options(k: int, filter: Filter | None, threshold: float | None, exact: bool) -> dict[str, Any]:
    return {"k": k, "filter": filter, "threshold": threshold, "exact": exact}


def _as_text(value: object) -> str:
    """Form fields are text: a number as it is written, the rest as JSON."""
    return as_json({"": value})[5:-1].decode()


def _bytes(image: Image) -> bytes:
    if isinstance(image, bytes):
        return image
    try:
        return Path(image).read_bytes()
    except OSError as error:
        raise ImageError(f"{image}: the image cannot be read ({error.strerror})") from error
