"""The service without HTTP: what it has, and the work that more than one route does."""

from __future__ import annotations

import asyncio
import socket
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from midspan.bridges import load_bridge
from midspan.data.decode import Pixels
from midspan.encoders.runtimes import check_runtime
from midspan.errors import MidspanError, SpaceMismatch
from midspan.gallery import Filter, Gallery, Hit, State
from midspan.gallery.routing import Arm
from midspan.gallery.search_log import SearchLog
from midspan.service import logs
from midspan.service.answers import newest
from midspan.service.auth import Caller
from midspan.service.batching import Batcher
from midspan.service.encoding import Encoders, Loaded, Shelf, query_spaces
from midspan.service.image_loader import ImageLoader
from midspan.service.image_roots import ImageRoots
from midspan.service.resources import Resources
from midspan.service.settings import GallerySettings
from midspan.spaces import Embeddings, FloatArray, Space
from midspan.upgrade import Embed, from_embeddings
from midspan.upgrade.arms import ArmLog

SEARCHED_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class SearchParams:
    """How to search; equal ones are answered together."""

    k: int
    filter: Filter | None = field(default=None, compare=False)
    threshold: float | None = None
    exact: bool = False
    spaces: tuple[str | None, ...] = (None,)  # fingerprints or names, in the order of the vectors
    arm: Arm | None = None
    filter_key: str = field(init=False)  # to Python 1 and True are equal, to a filter they are not

    def __post_init__(self) -> None:
        object.__setattr__(self, "filter_key", repr(self.filter))


@dataclass(frozen=True, slots=True)
class SearchResults:
    hits: list[list[Hit]]
    new: str | None  # fingerprint of the space that is called new; None: no upgrade is open


class SearchService:
    """One gallery; made before the server starts, closed after its last answer."""

    def __init__(
        self,
        settings: GallerySettings,
        *,
        gallery: Gallery,
        encoders: Encoders,
        resources: Resources,
        default: bool = True,
    ) -> None:
        """default: of the service; its paths need no name."""
        limits = resources.limits
        self.settings = settings
        self.name = settings.name
        self.prefix = "/v1" if default else f"/v1/galleries/{settings.name}"
        self.resources = resources
        self.limits = limits
        self.gallery = gallery
        self.encoders = encoders
        self.vectors = (
            None
            if settings.new_vectors is None
            else Embeddings.load(settings.new_vectors, space=settings.new_space)
        )
        self.bridge = None if settings.bridge is None else load_bridge(settings.bridge)
        self.stepping = threading.Lock()  # held while a step of an upgrade is made here
        self._item_locks = [threading.Lock() for _ in range(64)]
        self.arms = ArmLog(gallery)
        self.comparing: set[asyncio.Task[None]] = set()  # on the event loop
        self.log = SearchLog(gallery)
        self.image_roots = ImageRoots(
            images=settings.images, uploads=settings.uploads_folder, prefix=self.prefix
        )
        self.metrics, self.decoder = resources.metrics, resources.decoder
        self.image_loader = ImageLoader(self.image_roots, self.decoder, limits)
        self.reading, self.writing = resources.reading, resources.writing
        self.admin, self.jobs = resources.admin, resources.jobs
        self.scanning, self.decoding = resources.scanning, resources.decoding
        self.encode = Batcher[Pixels, FloatArray](
            "encode",
            self._encode,
            size=limits.encode_batch,
            wait=limits.encode_wait,
            waiting=limits.waiting,
        )
        self.search = Batcher[tuple[FloatArray, ...], SearchResults](
            "search",
            self._search,
            size=SEARCHED_TOGETHER,
            wait=0.0,
            waiting=limits.waiting,
        )

    @classmethod
    def open(
        cls,
        settings: GallerySettings,
        *,
        resources: Resources,
        shelf: Shelf | None = None,
        default: bool = True,
    ) -> SearchService:
        """shelf: encoders that other galleries of the service loaded."""
        names = [name for name in (settings.encoder, settings.new_encoder) if name is not None]
        runtime = check_runtime(settings.runtime)
        encoders = Encoders.load(names, runtime=runtime, shelf=shelf)
        gallery = Gallery.open(settings.gallery, who=f"service@{socket.gethostname()}"[:200])
        try:
            _check_encoder(settings, gallery, encoders)
            return cls(
                settings, gallery=gallery, encoders=encoders, resources=resources, default=default
            )
        except BaseException:
            gallery.close()
            raise

    def stop(self) -> None:
        """What was begun is finished; before `close`, and before the resources are closed."""
        for batcher in (self.encode, self.search):
            batcher.close()

    def close(self) -> None:
        """When nothing asks for it any more."""
        try:
            self.log.flush()
            self.arms.flush()
        except MidspanError as error:  # counts of the last moments are not worth a failed end
            logs.event("counts not written", level=30, error=str(error))
        self.gallery.close()

    def look(self) -> State:
        """How the gallery stands; its errors if it cannot say."""
        return self.gallery.state

    def acting_as(self, caller: Caller, *, address: str, request_id: str) -> Gallery:
        """The same gallery; the audit log shows who asked for it."""
        who = f"{caller.name} from {address}, request {request_id}"
        return self.gallery.acting_as(who[:200])

    @property
    def hidden(self) -> dict[str, str]:
        """What no answer should say: where things are on this machine."""
        hidden = {self.gallery.location: "the gallery"}
        if self.image_roots.uploads is not None:
            hidden[str(self.image_roots.uploads)] = "uploads"
        return hidden

    def item_lock(self, id: str) -> threading.Lock:
        """One writer of an item's image at a time."""
        return self._item_locks[zlib.crc32(id.encode()) % len(self._item_locks)]

    # ---- encoders and spaces

    def embed_into(self, fingerprint: str | None) -> Embed | None:
        """How items get a vector in this space, if this service can do it."""
        if (loaded := self.encoders.get(fingerprint)) is not None:
            return self.image_loader.embed_with(loaded)
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

    def modes(self, old: Space, new: Space) -> list[str]:
        """Those that an upgrade could be in, the one with the fewest searches first."""
        modes = []
        if new.comparable_with(old) or new.prefix_for(old):
            modes.append("direct")
        if self.bridge is not None:
            modes.append("map-query" if self.bridge.target.same_as(old) else "map-gallery")
        if not self.encoders.loaded or old.fingerprint in self.encoders:
            modes.append("both")
        return modes

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

    def _search(
        self, params: SearchParams, queries: list[tuple[FloatArray, ...]]
    ) -> list[SearchResults]:
        """Each of `queries` are vectors in each of the spaces."""
        state = self.gallery.state
        spaces = [self.space_called(space, state) for space in params.spaces]
        matrices = [np.concatenate(some) for some in zip(*queries, strict=True)]
        hits = self.search_in(list(zip(spaces, matrices, strict=True)), params)
        self.log.note(hits)
        new, found, start = newest(state), [], 0
        for query in queries:
            found.append(SearchResults(hits[start : start + len(query[0])], new))
            start += len(query[0])
        return found

    def search_in(
        self, queries: Sequence[tuple[Space, FloatArray]], params: SearchParams
    ) -> list[list[Hit]]:
        """Not counted among what live queries return."""
        return self.gallery.search_in(
            queries,
            arm=params.arm,
            k=params.k,
            filter=params.filter,
            exact=params.exact,
            threshold=params.threshold,
        )

    # ---- one item, one image

    async def embed_image(self, data: bytes, *encoders: Loaded) -> tuple[FloatArray, ...]:
        """(1, D) by each encoder; decoded once for all that look at the same size."""
        pixels: dict[tuple[Any, ...], Pixels] = {}
        for one in encoders:
            shape = (one.box.height, one.box.width, one.box.channels, one.box.fit)
            if shape not in pixels:
                pixels[shape] = await self.decoding.run(self.decoder.fit, data, one.box)
        shapes = [
            (one.box.height, one.box.width, one.box.channels, one.box.fit) for one in encoders
        ]
        work = [
            self.encode.submit(one.space.fingerprint, pixels[shape])
            for one, shape in zip(encoders, shapes, strict=True)
        ]
        return tuple([vector[None, :] for vector in await asyncio.gather(*work)])

    def embed_text(self, text: str, *encoders: Loaded) -> tuple[FloatArray, ...]:
        """(1, D) by each encoder."""
        return tuple([one.text(text) for one in encoders])

    def more_like(self, id: str, params: SearchParams) -> SearchResults:
        """The items nearest to a stored one, without itself, in whatever state an upgrade is."""
        state = self.gallery.state
        hits = self.gallery.more_like(id, k=params.k, filter=params.filter, exact=params.exact)
        if params.threshold is not None:
            hits = [hit for hit in hits if hit.score >= params.threshold]
        self.log.note([hits])
        return SearchResults([hits], newest(state))


def _check_encoder(settings: GallerySettings, gallery: Gallery, encoders: Encoders) -> None:
    """An encoder that fits nothing in this gallery is a mistake that the start reports."""
    if settings.encoder is None or any(one in encoders for one in gallery.state.spaces):
        return
    gallery.check_encoder(encoders.loaded[0].space)
