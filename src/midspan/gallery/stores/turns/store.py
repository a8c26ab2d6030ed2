"""A gallery on an engine without transactions: readers take views, writers take turns.

head.py says how a write still happens at one moment, whole or not at all, and survives the death of
its writer. One write goes on at a time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Self

from midspan.errors import GalleryError, SpaceMismatch, StateChanged
from midspan.gallery import rules
from midspan.gallery.filters import Filter, matches
from midspan.gallery.items import Draft, Hit, Item, Payload
from midspan.gallery.records import Counts, Entry, Failed, Failure, Mode, Query, State, Task
from midspan.gallery.stores.settings import check_made
from midspan.gallery.stores.turns import work, writes
from midspan.gallery.stores.turns.access import Access
from midspan.gallery.stores.turns.conditions import Passing
from midspan.gallery.stores.turns.engine import Engine
from midspan.gallery.stores.turns.head import Head, read_head
from midspan.gallery.stores.turns.records import Known, line
from midspan.gallery.stores.turns.search import search
from midspan.gallery.stores.turns.sweep import sweep
from midspan.gallery.stores.turns.view import View, records_of
from midspan.spaces import Embeddings, Space


class TurnStore:
    """All of a store but its engine."""

    engine: ClassVar[type[Engine]]

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._access = Access(engine)
        self.location = engine.shown

    @classmethod
    def create(cls, location: str, space: Space, *, entry: Entry) -> Self:
        entry = rules.check_entry(entry, when=time.time())
        return cls._made(location, lambda engine: _create(engine, space, entry))

    @classmethod
    def open(cls, location: str) -> Self:
        return cls._made(location, _check_settings)

    @classmethod
    def _made(cls, location: str, step: Callable[[Engine], None]) -> Self:
        engine = cls.engine(location)
        try:
            step(engine)
        except BaseException:
            engine.close()
            raise
        return cls(engine)

    def close(self) -> None:
        self._engine.close()

    # ---- the gallery as a whole

    def state(self) -> State:
        return self._access.view().known.state

    def change(self, state: State, *, entry: Entry) -> State:
        with self._access.turn() as turn:
            after = writes.change(turn, state, entry)
        self._list_work()
        return after

    def _list_work(self) -> None:
        """A long work list takes several writes; who dies in between leaves the rest to others."""
        while self._access.view().known.listing is not None:
            with self._access.turn() as turn:
                writes.list_work(turn)

    def record(self, entry: Entry) -> None:
        with self._access.turn() as turn:
            writes.record(turn, entry)

    def trail(self, *, limit: int) -> list[Entry]:
        rules.check_limit(limit)
        return self._access.read(lambda view: [Entry(**body) for body in view.trail(limit)])

    def sequence(self) -> int:
        return read_head(self._engine).number

    def count(self) -> Counts:
        return self._access.read(lambda view: view.all_counts())

    def optimise(self) -> None:
        sweep(self._access)
        self._engine.upkeep(self._access)

    def check(self) -> list[str]:
        return self._access.read(_wrong)

    # ---- items

    def upsert(self, drafts: Sequence[Draft], vectors: Sequence[Embeddings], *, mode: Mode) -> None:
        with self._access.turn() as turn:
            writes.upsert(turn, drafts, vectors, mode=mode)

    def fill(self, vectors: Embeddings, *, revisions: Sequence[int]) -> int:
        with self._access.turn() as turn:
            return writes.fill(turn, vectors, revisions)

    def annotate(self, payloads: Mapping[str, Payload]) -> None:
        with self._access.turn() as turn:
            writes.annotate(turn, payloads)

    def delete(self, ids: Sequence[str]) -> int:
        with self._access.turn() as turn:
            return writes.delete(turn, ids)

    def drop(self, space: str, *, limit: int) -> int:
        rules.check_limit(limit)
        with self._access.turn() as turn:
            return writes.drop(turn, space, limit)

    def get(self, ids: Sequence[str]) -> list[Item]:
        def look(view: View) -> list[Item]:
            found = view.by_id(ids)
            return [view.known.item(found[id]) for id in ids if id in found]

        return self._access.read(look)

    def vectors(self, ids: Sequence[str], *, space: str) -> Embeddings:
        def look(view: View) -> Embeddings:
            rules.known_space(view.known.state, space)
            found = view.by_id(ids)
            return view.vectors([found[id] for id in dict.fromkeys(ids) if id in found], space)

        return self._access.read(look)

    def scan(
        self, *, filter: Filter | None, missing: str | None, after: str, limit: int
    ) -> list[Item]:
        rules.check_limit(limit)
        rules.check_cursor(after)
        told = filter is not None and self._engine.condition(filter)[0]
        condition = [Passing(filter)] if filter is not None and told else []

        def look(view: View) -> list[Item]:
            known, masks = view.known, None
            if missing is not None:
                rules.known_space(known.state, missing)
                masks = known.masks(lacking=(known.numbers[missing],))
            size = limit if filter is None or told else max(limit, 100)
            found: list[Item] = []
            for page in view.items(after=after, masks=masks, also=condition, size=size):
                found += [
                    known.item(stored)
                    for stored in page
                    if filter is None or matches(filter, stored.payload)
                ]
                if len(found) >= limit:
                    break
            return found[:limit]

        return self._access.read(look)

    def search(self, query: Query) -> list[list[Hit]]:
        begun = False

        def look(view: View) -> list[list[Hit]]:
            nonlocal begun
            try:
                rules.check_query(view.known.state, query)
            except SpaceMismatch as error:
                if not begun:
                    raise
                raise StateChanged(f"{self.location}: {error}; search again") from error
            begun = True
            return search(view, query)

        return self._access.read(look, records=False)

    # ---- work

    def prioritise(self, ids: Sequence[str], priorities: Sequence[float]) -> None:
        with self._access.turn() as turn:
            work.prioritise(turn, ids, priorities)

    def claim(self, *, worker: str, limit: int, seconds: float) -> list[Task]:
        rules.check_limit(limit)
        self._list_work()
        with self._access.turn() as turn:
            return work.claim(turn, worker, limit, seconds)

    def release(self, worker: str) -> int:
        with self._access.turn() as turn:
            return work.release(turn, worker)

    def fail(self, reports: Sequence[Failed], *, retry_after: float | None) -> None:
        with self._access.turn() as turn:
            work.fail(turn, reports, retry_after)

    def failures(self, *, after: str, limit: int) -> list[Failure]:
        rules.check_limit(limit)
        rules.check_cursor(after)
        return self._access.read(lambda view: work.failures(view, after, limit))

    def retry(self) -> int:
        with self._access.turn() as turn:
            return work.retry(turn)


def _create(engine: Engine, space: Space, entry: Entry) -> None:
    """The head comes last and can be made once only: until then there is no gallery."""
    taken = GalleryError(f"there is a gallery at {engine.shown} already; open it")
    if engine.head() is not None:
        raise taken
    gallery = f"{engine.name}__{secrets.token_hex(4)}"
    head = Head(gallery, "free", 1, 1, 0, 0, 0, 1, secrets.token_hex(4))
    records, vectors = records_of(head), f"{gallery}_vectors_0"
    engine.make_records(records)
    engine.make_vectors(vectors, space)
    known = Known(
        state=rules.first_state(space),
        numbers={space.fingerprint: 0},
        collections={space.fingerprint: vectors},
        settings=engine.settings,
        indexed={},
    )
    rows = [*known.record(1).rows(), *line(entry, (1 << 24) + 1).rows()]
    engine.insert(records, rows, beat=lambda: None)
    for collection in (records, vectors):
        engine.wait_until_loaded(collection, beat=lambda: None)
    if not engine.begin(head.goes_on(time=engine.now())):
        for collection in (records, vectors):
            engine.drop(collection)
        raise taken


def _check_settings(engine: Engine) -> None:
    made = Access(engine).view().known.settings
    check_made(engine.settings, made, shown=engine.shown)
    engine.adopt(made)


def _wrong(view: View) -> list[str]:
    """Vectors that items name and the server lacks, or has too many of."""
    counts, problems = view.all_counts(), []
    for space, wanted in counts.stored.items():
        found = view.held(space)
        if found != wanted:
            problems.append(
                f"{view.known.state.spaces[space]}: the items name {wanted} vectors, the server "
                f"holds {found}"
            )
    return problems
