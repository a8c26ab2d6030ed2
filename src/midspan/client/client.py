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
from midspan.client.chunks import chunks
from midspan.client.events import parse_events
from midspan.client.explore import ExploreVerbs
from midspan.client.jobs import JobVerbs
from midspan.client.reading import read
from midspan.client.transport import (
    GALLERIES,
    RETRY_STATUSES,
    Call,
    RetryPolicy,
    Transport,
    as_json,
    back_off,
)
from midspan.client.upgrade import UpgradeVerbs
from midspan.deprecation import warn_renamed
from midspan.errors import (
    ConfigError,
    ImageError,
    ItemError,
    RequestError,
    Unreachable,
)
from midspan.spaces import Embeddings, FloatArray
from midspan.wire import (
    AuditAnswer,
    AuditEntry,
    Comparison,
    Deleted,
    Event,
    Galleries,
    GalleryEntry,
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

Image = str | Path | bytes  # where it is, or its bytes as in the file
Vector = Sequence[float] | FloatArray
Filter = Mapping[str, Any]  # as in docs/gallery.md: {"price": {"$lt": 50}}

SILENCE = 45.0  # seconds; a service that lives sends a heartbeat every 15


class Client:
    """One service. Threads may share it; close it, or use it in `with`.

    Args:
        url: Of the service: "http://127.0.0.1:8080".
        token: Of a reader or an admin. It is never sent over plain http beyond this machine, unless
            allow_http says that nobody else listens there.
        gallery: Name of one of the service's galleries; default its default.
        timeout: Seconds for a call; `long_timeout` for plans and comparisons.
        retries: How often a call is repeated that the service could not answer.
        longest_wait: Seconds between two tries.
        allow_http: Send the token over plain http.

    Raises:
        ConfigError: Not a URL, or a token that would be sent in the open.
        Unreachable: Each call: the service did not answer, after all retries.

    Example:
        >>> import midspan as ms
        >>> client = ms.Client("http://127.0.0.1:8080")
        >>> client
        Client('http://127.0.0.1:8080')
        >>> client.close()

        With a service at that address:

        >>> for hit in client.search(image="chair.jpg", k=5):  # doctest: +SKIP
        ...     print(hit.id, hit.score)
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        gallery: str | None = None,
        timeout: float = 30.0,
        long_timeout: float = 600.0,
        retries: int = 4,
        longest_wait: float = 30.0,
        allow_http: bool = False,
    ) -> None:
        """Defaults are those of `RetryPolicy`; each call is tried once and `retries` times more."""
        if timeout <= 0 or long_timeout <= 0 or retries < 0 or longest_wait < 0:
            raise ConfigError("time-outs are more than 0 seconds, retries and longest_wait 0 or up")
        policy = RetryPolicy(
            timeout=timeout, long_timeout=long_timeout, retries=retries, longest_wait=longest_wait
        )
        self._transport = Transport(
            url, token, policy=policy, allow_http=allow_http, gallery=gallery
        )
        self.jobs = JobVerbs(self._transport)
        self.explore = ExploreVerbs(self._transport, self.jobs)
        self.upgrade = UpgradeVerbs(self._transport, self.jobs)

    def __repr__(self) -> str:
        gallery = self._transport.gallery
        return f"Client({self._transport.url!r}{'' if gallery is None else f', {gallery=}'})"

    def close(self) -> None:
        """Let go of the connections; iterators of `events` end."""
        self._transport.close()

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
        text: str | None = None,
        k: int = 10,
        filter: Filter | None = None,
        threshold: float | None = None,
        exact: bool = False,
        space: str | None = None,
        also: Mapping[str, Vector] | None = None,
    ) -> tuple[Hit, ...]:
        """The nearest items to an image, a stored item (without itself), a vector or a text.

        Args:
            image: A path, or the bytes of a file; the service embeds it.
            id: Of a stored item.
            vector: Of the encoder whose queries the gallery answers.
            text: Such as "a red bird", where the service's encoder has a text tower.
            k: Results.
            filter: A payload filter, such as {"price": {"$lt": 50}}.
            threshold: The lowest score that counts.
            exact: Compare with every vector instead of an index.
            space: That of the vector, by fingerprint or name; default the one that queries come in.
            also: The same query in the other space of an upgrade in mode both, by its name.

        Returns:
            Hits, best first: id, score, payload, uri.

        Raises:
            ItemError: Not exactly one of image, id, vector and text.
            RequestError: The service refused the query.
        """
        if sum(query is not None for query in (image, id, vector, text)) != 1:
            raise ItemError("give one of image=, id=, vector= and text=")
        options = _options(k, filter, threshold, exact)
        if image is not None:
            response = self._form("POST", "/v1/search/image", image, options)
        elif id is not None:
            response = self._post("/v1/search/item", {"id": id, **options})
        elif text is not None:
            response = self._post("/v1/search", {"text": text, **options})
        else:
            body = {"vector": np.asarray(vector).tolist(), "space": space, **options}
            body["also"] = [
                {"space": name, "vectors": [np.asarray(one).tolist()]}
                for name, one in (also or {}).items()
            ]
            response = self._post("/v1/search/vector", body)
        return read(SearchAnswer, response).results

    def search_many(
        self,
        vectors: Embeddings | Sequence[Vector] | FloatArray,
        *,
        k: int = 10,
        filter: Filter | None = None,
        threshold: float | None = None,
        exact: bool = False,
        space: str | None = None,
        also: Embeddings | None = None,
    ) -> tuple[tuple[Hit, ...], ...]:
        """Several vectors in one request, at most 256.

        Args:
            vectors: Embeddings, which bring their own space, or rows of numbers.
            k: Results for each.
            filter: A payload filter, such as {"price": {"$lt": 50}}.
            threshold: The lowest score that counts.
            exact: Compare with every vector instead of an index.
            space: Of plain numbers, by fingerprint or name.
            also: The same queries, row by row, in the other space of an upgrade in mode both.

        Returns:
            For each query its hits.

        Raises:
            RequestError: The service refused the queries.
        """
        if isinstance(vectors, Embeddings):
            space = vectors.space.fingerprint
        rows = vectors.vectors if isinstance(vectors, Embeddings) else vectors
        body: dict[str, Any] = {"vectors": [np.asarray(row).tolist() for row in rows]}
        body["space"] = space
        if also is not None:
            further = {"space": also.space.fingerprint, "vectors": also.vectors.tolist()}
            body["also"] = [further]
        response = self._post(
            "/v1/search/vector", {**body, **_options(k, filter, threshold, exact)}
        )
        return read(SearchManyAnswer, response).results

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
        """The same query before and after the upgrade that is going on.

        Args:
            image: A path, or the bytes of a file.
            id: Of a stored item.
            k: Results.
            filter: A payload filter, such as {"price": {"$lt": 50}}.
            threshold: The lowest score that counts.
            exact: Compare with every vector instead of an index.

        Returns:
            Both answers, and what left, entered or moved.

        Raises:
            ItemError: Not exactly one of image and id.
            RequestError: No upgrade is open.
        """
        if (image is None) == (id is None):
            raise ItemError("give either image= or id=")
        options, path = _options(k, filter, threshold, exact), "/v1/search/compare"
        if image is not None:
            return read(Comparison, self._form("POST", path, image, options))
        return read(Comparison, self._post(path, {"id": id, **options}))

    # ---- items

    def items(self, *, filter: Filter | None = None, page: int = 500) -> Iterator[Item]:
        """All items by id, asked for page by page.

        Args:
            filter: A payload filter, such as {"price": {"$lt": 50}}.
            page: Items in one request.

        Returns:
            An iterator.
        """
        params = {"limit": str(page)}
        if filter is not None:
            params["filter"] = as_json(filter).decode()
        after: str | None = ""
        while after is not None:
            answer = read(ItemsPage, self._get("/v1/items", {**params, "after": after}))
            yield from answer.items
            after = answer.next

    def get(self, id: str) -> Item:
        """One item.

        Args:
            id: Its id.

        Returns:
            Uri, payload, and the spaces that it has vectors in.

        Raises:
            UnknownId: It is not there.
        """
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
        also: Mapping[str, Vector] | None = None,
    ) -> Written:
        """Add or replace one: its image, which the service embeds, or a vector made elsewhere.

        Args:
            id: Its id.
            image: A path, or the bytes of a file.
            vector: Made elsewhere.
            payload: A JSON object.
            uri: With a vector: where the image is.
            space: That of the vector, by fingerprint or name.
            also: Its vectors in further spaces, by their names: during an upgrade that promises a
                rollback an item has an old vector, and may have a new one.

        Returns:
            What was written.

        Raises:
            ItemError: Not exactly one of image and vector.
            RequestError: The service refused it. Requires the admin token.
        """
        path, payload = item_path("/v1/items", id), dict(payload or {})
        if (image is None) == (vector is None):
            raise ItemError("give either image= or vector=")
        if image is not None:
            if uri is not None or space is not None or also:
                raise ItemError(
                    "uri=, space= and also= go with vector=; of an image the service makes every "
                    "vector that is needed, and keeps it"
                )
            fields = {"payload": payload}
            return read(Written, self._form("PUT", path, image, fields, write=True))
        body = {"vector": np.asarray(vector).tolist(), "payload": payload, "uri": uri}
        further = {name: np.asarray(one).tolist() for name, one in (also or {}).items()}
        return read(Written, self._write("PUT", path, {**body, "space": space, "also": further}))

    def add(
        self,
        embeddings: Embeddings,
        *,
        also: Sequence[Embeddings] = (),
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """New items with their vectors.

        Args:
            embeddings: In a space that the gallery knows. At most 2,000 items go in one request,
                which is done whole or not at all.
            also: Vectors of the same items, by id, in further spaces: see `put`.
            uris: Where the image of each item is.
            payloads: JSON objects, one an item.

        Returns:
            How many were written.

        Raises:
            ItemError: uris or payloads do not fit, or `also` has other ids.
            RequestError: The service refused it, such as for an id that is there already.
        """
        return self._write_items("add", embeddings, also, uris=uris, payloads=payloads)

    def replace(
        self,
        embeddings: Embeddings,
        *,
        also: Sequence[Embeddings] = (),
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """New vectors for items that are there.

        Args:
            embeddings: In a space that the gallery knows. At most 2,000 items go in one request,
                which is done whole or not at all.
            also: Vectors of the same items, by id, in further spaces: see `put`.
            uris: Where the image of each item is.
            payloads: JSON objects, one an item.

        Returns:
            How many were written.

        Raises:
            ItemError: uris or payloads do not fit, or `also` has other ids.
            RequestError: The service refused it, such as for an id that is not there.
        """
        return self._write_items("replace", embeddings, also, uris=uris, payloads=payloads)

    def set_payload(self, id: str, payload: Mapping[str, Any]) -> Item:
        """Fields of the payload are set, those that are None removed; the rest stays.

        Args:
            id: Of the item.
            payload: The fields.

        Returns:
            The item as it is now.

        Raises:
            UnknownId: It is not there.
        """
        path = item_path("/v1/items", id)
        return read(Item, self._write("PATCH", path, {"payload": dict(payload)}))

    def annotate(self, id: str, payload: Mapping[str, Any]) -> Item:
        """The old name of `set_payload`, for one more release.

        Args:
            id: Of the item.
            payload: The fields.

        Returns:
            The item as it is now.

        Raises:
            UnknownId: It is not there.
        """
        warn_renamed("Client.annotate", "Client.set_payload")
        return self.set_payload(id, payload)

    def delete(self, id: str) -> bool:
        """Remove an item with all of its vectors.

        Args:
            id: Its id.

        Returns:
            Whether it was there.
        """
        call = Call(method="DELETE", path=item_path("/v1/items", id), write=True)
        return read(Deleted, self._transport.json(call)).deleted > 0

    def thumbnail(self, id: str, *, size: int = 160) -> bytes:
        """A small picture of an item whose image the service may show.

        Args:
            id: Its id.
            size: Pixels of the longer side.

        Returns:
            The bytes of a PNG or JPEG file.

        Raises:
            UnknownId: There is no such item, or no picture of it.
        """
        path = item_path("/v1/thumbnails", id)
        return self._transport.send(
            Call(method="GET", path=path, params={"size": str(size)})
        ).content

    # ---- the gallery and the service

    def galleries(self) -> tuple[GalleryEntry, ...]:
        """The galleries of the service.

        Returns:
            Names and what they hold, the default first.
        """
        return read(Galleries, self._get(GALLERIES)).galleries

    def info(self) -> GalleryInfo:
        """What the gallery holds, in numbers.

        Returns:
            Items by space, encoders, the upgrade.
        """
        return read(GalleryInfo, self._get("/v1/gallery"))

    def verify(self) -> Verification:
        """Look at every item and vector; changes nothing.

        Returns:
            What was found; `ok` if there is no problem.
        """
        path = "/v1/gallery/verify"
        return read(Verification, self._transport.json(Call(method="GET", path=path, slow=True)))

    def audit(self, *, limit: int = 100) -> tuple[AuditEntry, ...]:
        """Who did what and when, newest first. Requires the admin token.

        Args:
            limit: How many lines at most.

        Returns:
            The lines.
        """
        return read(AuditAnswer, self._get("/v1/audit", {"limit": str(limit)})).entries

    def events(self, *, heartbeats: bool = False) -> Iterator[Event]:
        """`gallery` and `upgrade` as they are now, then whenever they change; without an end.

        A lost connection is made again, and begins with how things are then. The events end when
        another thread closes the client.

        Args:
            heartbeats: Give those too; they come every 15 seconds.

        Returns:
            An iterator.

        Raises:
            Unreachable: The service did not come back, after all retries.
        """
        failed = 0
        while not self._transport.closed():
            try:
                call = Call(method="GET", path="/v1/events")
                with self._transport.stream(call, timeout=SILENCE) as lines:
                    for event in parse_events(lines):
                        failed = 0
                        if heartbeats or event.name != "heartbeat":
                            yield event
            except RuntimeError:  # of httpx: the client was closed concurrently
                if not self._transport.closed():
                    raise
                return
            except RequestError as error:
                if self._transport.closed():
                    return
                failed += 1
                worth = isinstance(error, Unreachable) or error.status in RETRY_STATUSES
                if not worth or failed > self._transport.policy.retries:
                    raise
            sleep(back_off(1 + failed))

    def health(self) -> bool:
        """Whether the service answers.

        Returns:
            True if it does.

        Raises:
            Unreachable: It does not.
        """
        return read(Health, self._get("/healthz")).status == "ok"

    def ready(self) -> bool:
        """Whether its galleries answer too. Asked once.

        Returns:
            False if they do not, or if the service does not.
        """
        try:
            self._transport.send(Call(method="GET", path="/readyz", once=True))
        except RequestError as error:
            if isinstance(error, Unreachable) or error.status == 503:
                return False
            raise
        return True

    def metrics(self) -> str:
        """What Prometheus reads.

        Returns:
            Text.
        """
        return self._transport.send(Call(method="GET", path="/metrics")).text

    def openapi(self) -> dict[str, Any]:
        """The service's own description.

        Returns:
            An OpenAPI document.
        """
        return read(dict[str, Any], self._get("/openapi.json"))

    # ---- how

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return self._transport.json(Call(method="GET", path=path, params=params))

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        """A question that has a body."""
        return self._transport.json(Call(method="POST", path=path, body=as_json(body)))

    def _write(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        return self._transport.json(Call(method=method, path=path, body=as_json(body), write=True))

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
        return self._transport.json(call)

    def _write_items(
        self,
        mode: str,
        embeddings: Embeddings,
        also: Sequence[Embeddings],
        *,
        uris: Sequence[str | None] | None,
        payloads: Sequence[Mapping[str, Any]] | None,
    ) -> int:
        for name, column in (("uris", uris), ("payloads", payloads)):
            if column is not None and len(column) != len(embeddings):
                raise ItemError(f"{len(column)} {name} for {len(embeddings)} items; give one each")
        known = set(embeddings.ids.tolist())
        for other in also:
            if unknown := sorted(set(other.ids.tolist()) - known):
                raise ItemError(f"also has the id {unknown[0]!r:.80}, which is not among the items")
        whole = {"space": embeddings.space.fingerprint, "mode": mode}
        written = 0
        for items in chunks(embeddings, uris=uris, payloads=payloads, also=also):
            response = self._write("POST", "/v1/items", {**whole, "items": items})
            written += read(Written, response).written
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
