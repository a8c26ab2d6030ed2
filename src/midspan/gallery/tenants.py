"""One tenant's part of a gallery that several share.

    acme = gallery.tenant("acme")
    acme.add(embeddings)
    acme.search(queries, k=10)

The items of a tenant have ids of its own (stored as `acme:id`) and the payload field `tenant`, to
which every search is bound: whatever filter or id a request brings, it meets the tenant's items
alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from midspan.errors import GalleryError, ItemError
from midspan.gallery.batches import payloads_of
from midspan.gallery.filters import And, Eq, Filter, parse_filter
from midspan.gallery.records import Hit, Item, Payload
from midspan.gallery.routing import Arm
from midspan.spaces import Embeddings, Space

if TYPE_CHECKING:
    from midspan.gallery.gallery import Gallery, Where

FIELD = "tenant"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # without the colon that ends it in an id


class Tenant:
    def __init__(self, gallery: Gallery, name: str) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ItemError(
                f"a tenant's name is 1 to 64 letters, digits, dots, - and _, got {name!r:.80}"
            )
        if gallery.owner is not None:
            raise GalleryError(
                f"{gallery.location}: its items are those of {gallery.owner}, whose ids name no "
                "tenant; filter by a field of theirs instead"
            )
        self._gallery, self.name = gallery, name
        self._bound = Eq(FIELD, name)

    def __repr__(self) -> str:
        return f"Tenant({self.name!r} of {self._gallery.location!r})"

    @property
    def location(self) -> str:
        return self._gallery.location

    # ---- writing

    def add(
        self,
        vectors: Embeddings,
        *,
        also: Sequence[Embeddings] = (),
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Payload] | None = None,
    ) -> int:
        """As `Gallery.add`."""
        return self._write(self._gallery.add, vectors, also, uris, payloads)

    def put(
        self,
        vectors: Embeddings,
        *,
        also: Sequence[Embeddings] = (),
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Payload] | None = None,
    ) -> int:
        """As `Gallery.put`: add or replace."""
        return self._write(self._gallery.put, vectors, also, uris, payloads)

    def _write(
        self,
        write: Callable[..., int],
        vectors: Embeddings,
        also: Sequence[Embeddings],
        uris: Sequence[str | None] | None,
        payloads: Sequence[Payload] | None,
    ) -> int:
        given = payloads_of(vectors) if payloads is None else payloads
        return write(
            self._stored(vectors),
            also=[self._stored(part) for part in also],
            uris=uris,
            payloads=self._stamped(given),
        )

    def set_payload(self, payloads: Mapping[str, Payload]) -> None:
        """As `Gallery.set_payload`; the items stay the tenant's."""
        stamped = self._stamped(list(payloads.values()))
        self._gallery.set_payload(dict(zip(self._keys(list(payloads)), stamped, strict=True)))

    def delete(self, ids: Sequence[str]) -> int:
        """Returns how many there were."""
        return self._gallery.delete(self._keys(ids))

    # ---- reading

    def __len__(self) -> int:
        return self._gallery.count_matching(self._bound)

    def get_many(self, ids: Sequence[str]) -> list[Item]:
        """Those that are there, in the order asked for."""
        return [self._own(item) for item in self._gallery.get_many(self._keys(ids))]

    def scan(self, *, filter: Where = None, after: str = "", limit: int) -> list[Item]:
        """The next items by id, after this one."""
        items = self._gallery.scan(
            filter=self._restricted(filter), after=self._key(after), limit=limit
        )
        return [self._own(item) for item in items]

    def vectors(self, ids: Sequence[str], *, space: str) -> Embeddings:
        """Of those that have a vector in the space, in the order asked for."""
        vectors = self._gallery.vectors(self._keys(ids), space=space)
        return _renamed(vectors, [self._id(id) for id in vectors.ids.tolist()])

    def search(
        self,
        query: Embeddings | Sequence[Embeddings] | npt.NDArray[Any],
        *,
        k: int = 10,
        space: Space | None = None,
        filter: Where = None,
        exact: bool = False,
        threshold: float | None = None,
        arm: Arm | None = None,
        client: str | None = None,
    ) -> list[list[Hit]]:
        """As `Gallery.search`, among the tenant's items."""
        answers = self._gallery.search(
            query,
            k=k,
            space=space,
            filter=self._restricted(filter),
            exact=exact,
            threshold=threshold,
            arm=arm,
            client=client,
        )
        return [self._hits(hits) for hits in answers]

    def more_like(
        self, id: str, *, k: int = 10, filter: Where = None, exact: bool = False
    ) -> list[Hit]:
        """As `Gallery.more_like`, among the tenant's items."""
        return self._hits(
            self._gallery.more_like(
                self._key(id), k=k, filter=self._restricted(filter), exact=exact
            )
        )

    # ---- between the tenant's names and the gallery's

    def _key(self, id: str) -> str:
        return f"{self.name}:{id}"

    def _keys(self, ids: Sequence[str]) -> list[str]:
        return [self._key(id) for id in ids]

    def _id(self, key: str) -> str:
        return key[len(self.name) + 1 :]

    def _own(self, item: Item) -> Item:
        return dataclasses.replace(item, id=self._id(item.id))

    def _hits(self, hits: Sequence[Hit]) -> list[Hit]:
        return [hit._replace(id=self._id(hit.id)) for hit in hits]

    def _stored(self, vectors: Embeddings) -> Embeddings:
        return _renamed(vectors, self._keys(vectors.ids.tolist()))

    def _restricted(self, filter: Where) -> Filter:
        if filter is None:
            return self._bound
        return And((self._bound, parse_filter(filter) if isinstance(filter, Mapping) else filter))

    def _stamped(self, payloads: Sequence[Payload]) -> list[Payload]:
        for payload in payloads:
            if payload.get(FIELD, self.name) != self.name:
                raise ItemError(
                    f"the payload of an item of {self.name} names the tenant "
                    f"{payload[FIELD]!r:.80}; leave the field {FIELD!r} out"
                )
        return [{**payload, FIELD: self.name} for payload in payloads]


def _renamed(vectors: Embeddings, ids: Sequence[str]) -> Embeddings:
    return dataclasses.replace(vectors, ids=np.array(ids, dtype=np.str_))
