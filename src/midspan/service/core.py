"""The service without HTTP: what it has, and the work that more than one route does."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from midspan.data.decode import Pixels
from midspan.errors import SpaceMismatch, UnknownId
from midspan.gallery import Filter, Gallery, Hit, State, parse_filter
from midspan.service.answers import newest
from midspan.service.auth import Caller
from midspan.service.batching import Batcher
from midspan.service.decoding import DecodePool
from midspan.service.encoding import Encoders, Loaded, query_spaces
from midspan.service.lanes import Lane
from midspan.service.metrics import Metrics
from midspan.service.pictures import Pictures
from midspan.service.places import Places
from midspan.service.settings import Settings
from midspan.spaces import Embeddings, FloatArray, Space
from midspan.upgrade import Embed, Record, from_embeddings, search

SEARCHED_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class Asked:
    """How to search; equal ones are answered together."""

    k: int
    filter: str | None  # JSON
    threshold: float | None
    exact: bool
    space: str | None = None  # fingerprint or name

    def parsed(self) -> Filter | None:
        if self.filter is None:
            return None
        from pydantic_core import from_json

        return parse_filter(from_json(self.filter))


@dataclass(frozen=True, slots=True)
class Found:
    hits: list[list[Hit]]
    new: str  # fingerprint of the space that is called new


class Core:
    """Made before the server starts, closed after its last answer."""

    def __init__(self, settings: Settings, *, gallery: Gallery, encoders: Encoders) -> None:
        limits = settings.limits
        self.settings = settings
        self.gallery = gallery
        self.encoders = encoders
        self.vectors = (
            None if settings.new_vectors is None else Embeddings.load(settings.new_vectors)
        )
        self.stepping = threading.Lock()  # held while a step of an upgrade is made here
        self._item_locks = [threading.Lock() for _ in range(64)]
        self.metrics = Metrics()
        self.places = Places(images=settings.images, uploads=settings.uploads_folder)
        self.decoder = DecodePool(limits)
        self.pictures = Pictures(self.places, self.decoder, limits)
        self.reading = Lane("read", threads=limits.search_threads, waiting=limits.waiting)
        self.writing = Lane("write", threads=2, waiting=limits.waiting)
        self.admin = Lane("admin", threads=2, waiting=16)
        self.scanning = Lane("scan", threads=1, waiting=2)  # long looks must not hold up others
        self.decoding = Lane("decode", threads=limits.decode_workers, waiting=limits.waiting)
        self.encode = Batcher[Pixels, FloatArray](
            "encode",
            self._encode,
            size=limits.encode_batch,
            wait=limits.encode_wait,
            waiting=limits.waiting,
        )
        self.search = Batcher[FloatArray, Found](
            "search",
            self._search,
            size=SEARCHED_TOGETHER,
            wait=0.0,
            waiting=limits.waiting,
            threads=limits.search_threads,
        )

    @classmethod
    def open(cls, settings: Settings) -> Core:
        names = [name for name in (settings.encoder, settings.new_encoder) if name is not None]
        encoders = Encoders.load(names)
        gallery = Gallery.open(settings.gallery, who=f"service@{socket.gethostname()}"[:200])
        try:
            _check_encoder(settings, gallery, encoders)
            return cls(settings, gallery=gallery, encoders=encoders)
        except BaseException:
            gallery.close()
            raise

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return self.decoding, self.reading, self.writing, self.scanning, self.admin

    def close(self) -> None:
        """What was begun is finished first."""
        for batcher in (self.encode, self.search):
            batcher.close()
        for lane in self.lanes:
            lane.close()
        self.decoder.close()
        self.gallery.close()

    def acting_as(self, caller: Caller, *, address: str, request_id: str) -> Gallery:
        """The same gallery; the trail shows who asked for it."""
        who = f"{caller.name} from {address}, request {request_id}"
        return Gallery(self.gallery.store, who=who[:200])

    @property
    def hidden(self) -> dict[str, str]:
        """What no answer should say: where things are on this machine."""
        hidden = {self.gallery.location: "the gallery"}
        if self.places.uploads is not None:
            hidden[str(self.places.uploads)] = "uploads"
        return hidden

    def item_lock(self, id: str) -> threading.Lock:
        """One writer of an item's image at a time."""
        return self._item_locks[zlib.crc32(id.encode()) % len(self._item_locks)]

    # ---- encoders and spaces

    def embed_into(self, fingerprint: str | None) -> Embed | None:
        """How items get a vector in this space, if this service can do it."""
        if (loaded := self.encoders.get(fingerprint)) is not None:
            return self.pictures.embed_with(loaded)
        if self.vectors is not None and self.vectors.space.fingerprint == fingerprint:
            return from_embeddings(self.vectors, source="the new vectors")
        return None

    def destination(self) -> Space | None:
        """Where an upgrade would lead: to the new encoder's space, or that of the new vectors."""
        space = None
        if self.vectors is not None:
            space = self.vectors.space
        elif self.settings.new_encoder is not None:
            space = self.encoders.loaded[-1].space
        here = self.gallery.state.live == (space.fingerprint,) if space is not None else True
        return None if here else space

    def space_called(self, name: str | None, state: State) -> Space:
        """By fingerprint or by a name that only one has; default: what queries come in."""
        if name is None:
            return state.spaces[query_spaces(state)[0]]
        if name in state.spaces:
            return state.spaces[name]
        named = [space for space in state.spaces.values() if space.name == name]
        if len(named) == 1:
            return named[0]
        known = ", ".join(map(str, state.spaces.values()))
        raise SpaceMismatch(
            f"{len(named)} spaces are called {name!r:.80}; this gallery has {known}"
        )

    # ---- batches

    def _encode(self, fingerprint: str, images: list[Pixels]) -> list[FloatArray]:
        loaded = self.encoders.get(fingerprint)
        assert loaded is not None
        return list(loaded.vectors(images))

    def _search(self, asked: Asked, queries: list[FloatArray]) -> list[Found]:
        state = self.gallery.state
        space = self.space_called(asked.space, state)
        hits = search(
            self.gallery,
            np.concatenate(queries),
            space=space,
            k=asked.k,
            filter=asked.parsed(),
            exact=asked.exact,
            threshold=asked.threshold,
        )
        new, found, start = newest(state), [], 0
        for query in queries:
            found.append(Found(hits[start : start + len(query)], new))
            start += len(query)
        return found

    # ---- one item, one image

    async def embed_image(self, data: bytes, loaded: Loaded) -> FloatArray:
        """(1, D)"""
        pixels = await self.decoding.run(self.decoder.fit, data, loaded.box)
        vector = await self.encode.submit(loaded.space.fingerprint, pixels)
        return vector[None, :]

    def more_like(self, id: str, asked: Asked) -> Found:
        """The items nearest to a stored one, without itself, in whatever state an upgrade is."""
        state = self.gallery.state
        item = self.gallery.get(id)
        vector, part = self.item_query(item.id, item.spaces, state)
        options: dict[str, Any] = {
            "k": asked.k + 1,
            "filter": asked.parsed(),
            "exact": asked.exact,
            "threshold": asked.threshold,
        }
        if part is None:
            hits = search(self.gallery, vector, **options)[0]
        else:
            hits = self.gallery.search(vector, live=state.live, among=part, **options)[0]
        return Found([[hit for hit in hits if hit.id != id][: asked.k]], newest(state))

    def item_query(
        self, id: str, spaces: Sequence[str], state: State
    ) -> tuple[Embeddings, tuple[str, ...] | None]:
        """(its vector as a query, the part of the live spaces to look in or None for routing)."""
        mine = next((space for space in state.live if space in spaces), None)
        vector = None if mine is None else self.gallery.store.vectors([id], space=mine)
        if mine is None or vector is None or not len(vector):
            raise UnknownId(f"{id!r:.80} has no live vector, so nothing can be compared with it")
        record = Record.of(state)
        if record is None or mine == record.new or (record.mode == "map-query"):
            return vector, None
        among = tuple(
            space for space in state.live if state.spaces[mine].comparable_with(state.spaces[space])
        )
        return vector, among


def _check_encoder(settings: Settings, gallery: Gallery, encoders: Encoders) -> None:
    """An encoder that fits nothing in this gallery is a mistake to be told of at once."""
    if settings.encoder is None or any(one in encoders for one in gallery.state.spaces):
        return
    gallery.check_encoder(encoders.loaded[0].space)
