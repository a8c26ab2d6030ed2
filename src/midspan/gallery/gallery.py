"""A gallery: items and their vectors, each vector with the space it lives in, searchable.

gallery = Gallery.create("shop.midspan", embeddings.space)
gallery.add(embeddings, uris=paths, payloads=payloads)
gallery.search(queries, k=10, filter=Eq("brand", "acme"))
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from midspan import progress
from midspan.errors import ItemError, SpaceMismatch, StateChanged, UnknownId
from midspan.gallery.filters import Filter, parse_filter
from midspan.gallery.info import Info, describe
from midspan.gallery.items import Draft, Hit, Item, Payload
from midspan.gallery.records import Entry, Mode, Query, State
from midspan.gallery.rules import holds
from midspan.gallery.stores import create_store, open_store
from midspan.gallery.stores.base import Store
from midspan.gallery.verify import Verification, verify
from midspan.spaces import Embeddings, Space, check_comparable

BATCH = 2000  # items in one transaction
STATE_CHANGES = 10  # that a search lives through


class Gallery:
    """Open it once per process and use it from any thread."""

    def __init__(self, store: Store, *, who: str | None = None) -> None:
        self.store = store
        self.who = who or _whoever()

    @classmethod
    def create(
        cls,
        location: str | Path,
        space: Space,
        *,
        quantise: str = "none",
        who: str | None = None,
    ) -> Self:
        """An empty gallery for vectors of this space.

        quantise: none, int8 or binary; how small a file's vectors are held in memory.
        """
        entry = Entry(who=who or _whoever(), what="create", details={"space": space.fingerprint})
        return cls(create_store(str(location), space, entry=entry, quantise=quantise), who=who)

    @classmethod
    def open(
        cls, location: str | Path, *, encoder_space: Space | None = None, who: str | None = None
    ) -> Self:
        """`encoder_space` is that of the encoder that will work on it: another one is refused."""
        gallery = cls(open_store(str(location)), who=who)
        try:
            if encoder_space is not None:
                gallery.check_encoder(encoder_space)
        except BaseException:
            gallery.close()
            raise
        return gallery

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def location(self) -> str:
        return self.store.location

    @property
    def state(self) -> State:
        return self.store.state()

    @property
    def space(self) -> Space:
        """The space that new items should come in: the first of those that are live."""
        state = self.state
        return state.spaces[state.live[0]]

    def check_encoder(self, space: Space) -> None:
        """Refuse an encoder whose vectors this gallery does not hold."""
        state = self.state
        if any(state.spaces[known].same_as(space) for known in state.writable()):
            return
        raise SpaceMismatch(
            f"{self.location} holds vectors of {holds(state)}, this encoder makes {space}. Two "
            "ways out: use the gallery's own encoder, or change the gallery over to this one with "
            f"midspan upgrade start {self.location} --encoder …"
        )

    # ---- writing

    def add(
        self,
        vectors: Embeddings,
        *,
        also: Sequence[Embeddings] = (),
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Payload] | None = None,
        show: bool = False,
    ) -> int:
        """New items; `also` are vectors of some of them in further spaces.

        Written in batches of 2,000, each of them whole or not at all; an id that is there already
        is an error. Returns the number of items.
        """
        return self._write(vectors, also, uris, payloads, mode="add", show=show)

    def replace(
        self,
        vectors: Embeddings,
        *,
        also: Sequence[Embeddings] = (),
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Payload] | None = None,
        show: bool = False,
    ) -> int:
        """New images for items that are there: all that was known of the former ones goes."""
        return self._write(vectors, also, uris, payloads, mode="replace", show=show)

    def put(
        self,
        vectors: Embeddings,
        *,
        also: Sequence[Embeddings] = (),
        uris: Sequence[str | None] | None = None,
        payloads: Sequence[Payload] | None = None,
        show: bool = False,
    ) -> int:
        """Add or replace: may be repeated after a crash."""
        return self._write(vectors, also, uris, payloads, mode="put", show=show)

    def _write(
        self,
        vectors: Embeddings,
        also: Sequence[Embeddings],
        uris: Sequence[str | None] | None,
        payloads: Sequence[Payload] | None,
        *,
        mode: Mode,
        show: bool,
    ) -> int:
        ids = vectors.ids.tolist()
        for name, column in (("uris", uris), ("payloads", payloads)):
            if column is not None and len(column) != len(ids):
                raise ItemError(f"{len(column)} {name} for {len(ids)} items; give one each")
        drafts = [
            Draft(
                id=id,
                uri=uris[row] if uris is not None else None,
                payload=payloads[row] if payloads is not None else {},
            )
            for row, id in enumerate(ids)
        ]
        known = set(ids)
        for part in also:
            if not (given := set(part.ids.tolist())) <= known:
                raise ItemError(f"a vector for {min(given - known)!r}, which is none of the items")
        with progress.bar(mode, total=len(drafts), unit="items", show=show) as done:
            for start in range(0, len(drafts), BATCH):
                batch = drafts[start : start + BATCH]
                parts = [vectors[start : start + BATCH]]
                parts += [_those(part, ids[start : start + BATCH]) for part in also]
                self.store.upsert(batch, [part for part in parts if len(part)], mode=mode)
                done(len(batch))
        return len(drafts)

    def annotate(self, payloads: Mapping[str, Payload]) -> None:
        """Other payloads for these ids; images and vectors stay."""
        self.store.annotate(payloads)

    def delete(self, ids: Sequence[str]) -> int:
        """Returns how many there were."""
        return self.store.delete(ids)

    # ---- reading

    def __len__(self) -> int:
        return self.store.count().items

    def get(self, id: str) -> Item:
        found = self.store.get([id])
        if not found:
            raise UnknownId(f"{id!r:.80} is not in {self.location}")
        return found[0]

    def search(
        self,
        query: Embeddings | npt.NDArray[Any],
        *,
        k: int = 10,
        space: Space | None = None,
        filter: Filter | Mapping[str, Any] | None = None,
        exact: bool = False,
        threshold: float | None = None,
        live: tuple[str, ...] | None = None,
        among: tuple[str, ...] | None = None,
    ) -> list[list[Hit]]:
        """The k best items for each query, best first; equal scores by id.

        query: Embeddings, or (Q, D) numbers with their `space`.
        filter: a Filter or its JSON form. threshold: the lowest score that counts.
        live, among: another view than the present one, or a part of it (see records.Query).
        """
        if isinstance(query, Embeddings):
            space, vectors = query.space, query.vectors
        elif space is None:
            raise SpaceMismatch("plain numbers want space=…, the space that they live in")
        else:
            vectors = np.atleast_2d(np.asarray(query, dtype=np.float32))
        if isinstance(filter, Mapping):
            filter = parse_filter(filter)
        for _ in range(STATE_CHANGES):
            seen = None if live else self._seen(space, check=among is None)
            view = live or () if seen is None else seen.live
            try:
                return self.store.search(
                    Query(
                        vectors=vectors,
                        k=k,
                        live=view,
                        among=view if among is None else among,
                        filter=filter,
                        exact=exact,
                        threshold=threshold,
                        seen=seen,
                    )
                )
            except StateChanged:  # an upgrade began or ended in this moment
                if live is not None or among is not None:
                    raise
        raise StateChanged(
            f"{self.location}: the state changed {STATE_CHANGES} times; search again"
        )

    def _seen(self, space: Space, *, check: bool) -> State:
        state = self.state
        if check:
            for fingerprint in state.live:
                check_comparable(space, state.spaces[fingerprint])
        return state

    def more_like(
        self, id: str, *, k: int = 10, filter: Filter | Mapping[str, Any] | None = None
    ) -> list[Hit]:
        """The items nearest to a stored one, without itself."""
        item, state = self.get(id), self.state
        mine = next((space for space in state.live if space in item.spaces), None)
        if mine is None:
            raise UnknownId(f"{id!r:.80} has no live vector in {self.location}")
        query = self.store.vectors([id], space=mine)
        among = tuple(
            space for space in state.live if state.spaces[mine].comparable_with(state.spaces[space])
        )
        hits = self.search(query, k=k + 1, filter=filter, among=among)[0] if len(query) else []
        return [hit for hit in hits if hit.id != id][:k]

    def info(self) -> Info:
        return describe(self.store)

    def verify(self, *, show: bool = False) -> Verification:
        """Look at every item and vector; changes nothing."""
        return verify(self.store, show=show)

    def trail(self, *, limit: int = 100) -> list[Entry]:
        """Who did what and when, newest first."""
        return self.store.trail(limit=limit)


def _those(part: Embeddings, ids: Sequence[str]) -> Embeddings:
    wanted = set(ids)
    return part[np.array([id in wanted for id in part.ids.tolist()], dtype=bool)]


def _whoever() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"[:200]
    except (KeyError, OSError):  # a container without a user name
        return "unknown"
