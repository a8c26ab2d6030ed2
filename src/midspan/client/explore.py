"""`client.explore`: counts, stored vectors, near-identical items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from midspan.client.address import item_path
from midspan.client.jobs import JobVerbs
from midspan.client.reading import read
from midspan.client.transport import Call, Transport, as_json
from midspan.wire import Duplicates, Facets, Item, ItemsPage, StoredVector, Written

Filter = Mapping[str, Any]  # as in docs/gallery.md: {"price": {"$lt": 50}}


class ExploreVerbs:
    def __init__(self, transport: Transport, jobs: JobVerbs) -> None:
        self._transport, self._jobs = transport, jobs

    def facets(self, *fields: str, filter: Filter | None = None, limit: int = 20) -> Facets:
        """How many items match, and how many have which value of these payload fields."""
        body = {"fields": list(fields), "filter": filter, "limit": limit}
        return read(Facets, self._post("/v1/facets", body))

    def duplicates(
        self, *, threshold: float = 0.98, filter: Filter | None = None, limit: int = 100
    ) -> Duplicates:
        """Groups of items whose vectors are nearly the same. Requires the admin token."""
        body = {"threshold": threshold, "filter": filter, "limit": limit}
        return read(Duplicates, self._jobs.result(self._post("/v1/duplicates", body)))

    def vector(self, id: str, *, space: str | None = None) -> StoredVector:
        """The stored vector, of the space that answers for the item or of another."""
        params = None if space is None else {"space": space}
        path = item_path("/v1/vectors", id)
        return read(
            StoredVector, self._transport.json(Call(method="GET", path=path, params=params))
        )

    def containing(self, text: str, *, page: int = 500) -> Iterator[Item]:
        """Items with this text in their id or in a value of their payload."""
        after: str | None = ""
        while after is not None:
            params = {"contains": text, "after": after, "limit": str(page)}
            call = Call(method="GET", path="/v1/items", params=params)
            answer = read(ItemsPage, self._transport.json(call))
            yield from answer.items
            after = answer.next

    def replace_payload(self, id: str, payload: Mapping[str, Any]) -> Written:
        """This payload in place of the former; image and vectors stay."""
        path, body = item_path("/v1/items", id), as_json({"payload": dict(payload)})
        call = Call(method="PUT", path=path, body=body, write=True)
        return read(Written, self._transport.json(call))

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._transport.json(Call(method="POST", path=path, body=as_json(body), slow=True))
