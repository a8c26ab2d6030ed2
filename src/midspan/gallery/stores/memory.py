"""`memory:`: exact, in plain dicts and NumPy. The reference, the test double; gone when closed."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Self

import numpy as np

from midspan.errors import GalleryError, StoreError, UnknownId
from midspan.gallery import rules
from midspan.gallery.filters import Filter, matches
from midspan.gallery.items import Draft, Hit, Item, Payload, payload_json
from midspan.gallery.records import Counts, Entry, Failed, Failure, Mode, Query, State, Task
from midspan.gallery.stores.memory_items import Items, live_space
from midspan.gallery.stores.memory_search import search
from midspan.gallery.stores.work_list import WorkList
from midspan.spaces import Embeddings, Space


class MemoryStore:
    def __init__(self, location: str, state: State) -> None:
        self.location = location
        self._lock = threading.RLock()
        self._state = state
        self._items = Items()
        self._work = WorkList()
        self._trail: list[Entry] = []
        self._sequence = 1
        self._open = True

    @classmethod
    def create(cls, location: str, space: Space, *, entry: Entry) -> Self:
        store = cls(location, rules.first_state(space))
        store.record(entry)
        return store

    @classmethod
    def open(cls, location: str) -> Self:
        raise GalleryError(
            f"{location}: a gallery in memory ends with its process and cannot be opened again; "
            "create it, or use a file: shop.midspan"
        )

    def close(self) -> None:
        with self._lock:
            self._open = False
            self._items.clear()

    # ---- the gallery as a whole

    def state(self) -> State:
        self._check_open()
        return self._state

    def change(self, state: State, *, entry: Entry) -> State:
        with self._lock:
            self._check_open()
            after = rules.check_change(self._state, state)
            entry = rules.check_entry(entry, when=time.time())
            for fingerprint in self._state.spaces.keys() - after.spaces.keys():
                if left := self._items.stored(fingerprint):
                    raise GalleryError(
                        f"{left} vectors of {self._state.spaces[fingerprint]} are left; drop them "
                        "before the gallery forgets the space"
                    )
            retarget = after.target != self._state.target
            self._state = after
            if retarget:
                self._work = WorkList()
                for id in self._items.by_number():
                    self._put_to_work(id)
            self._trail.append(entry)
            self._sequence += 1
            return after

    def record(self, entry: Entry) -> None:
        with self._lock:
            self._check_open()
            self._trail.append(rules.check_entry(entry, when=time.time()))
            self._sequence += 1

    def trail(self, *, limit: int) -> list[Entry]:
        with self._lock:
            return self._trail[: -rules.check_limit(limit) - 1 : -1]

    def sequence(self) -> int:
        return self._sequence

    def count(self) -> Counts:
        with self._lock:
            self._check_open()
            live = dict.fromkeys(self._state.live, 0)
            without = 0
            for record in self._items:
                space = live_space(self._state.live, record.vectors)
                if space is None:
                    without += 1
                else:
                    live[space] += 1
            return Counts(
                items=len(self._items),
                stored={space: self._items.stored(space) for space in self._state.spaces},
                live=live,
                without=without,
                pending=len(self._work) - self._work.failed(),
                failed=self._work.failed(),
            )

    def optimise(self) -> None:
        self._check_open()

    def check(self) -> list[str]:
        return []

    # ---- items

    def upsert(self, drafts: Sequence[Draft], vectors: Sequence[Embeddings], *, mode: Mode) -> None:
        with self._lock:
            self._check_open()
            rules.check_write(self._state, drafts, vectors)
            present = [draft.id for draft in drafts if draft.id in self._items]
            rules.check_presence(present, drafts, mode=mode)
            now = time.time()
            for draft in drafts:
                self._items.put(draft, now=now)
            for part in vectors:
                for id, vector in zip(part.ids.tolist(), part.vectors, strict=True):
                    self._items[id].vectors[part.space.fingerprint] = vector.copy()
            for draft in drafts:
                self._put_to_work(draft.id)
            self._sequence += 1

    def fill(self, vectors: Embeddings, *, revisions: Sequence[int]) -> int:
        with self._lock:
            self._check_open()
            rules.check_fill(self._state, vectors, revisions)
            space, written = vectors.space.fingerprint, 0
            rows = zip(vectors.ids.tolist(), vectors.vectors, revisions, strict=True)
            for id, vector, revision in rows:
                record = self._items.get(id)
                if record is None or record.revision != revision or space in record.vectors:
                    continue
                record.vectors[space] = vector.copy()
                written += 1
                if space == self._state.target:
                    self._work.remove(id)
            self._sequence += written > 0
            return written

    def annotate(self, payloads: Mapping[str, Payload]) -> None:
        with self._lock:
            self._check_open()
            texts = {id: payload_json(payload, of=id) for id, payload in payloads.items()}
            if missing := self._items.missing(texts):
                raise UnknownId(
                    f"{len(missing)} ids are not in the gallery, first {min(missing)!r}"
                )
            now = time.time()
            for id, text in texts.items():
                self._items[id].payload, self._items[id].changed = text, now
            self._sequence += 1

    def delete(self, ids: Sequence[str]) -> int:
        with self._lock:
            self._check_open()
            gone = [id for id in dict.fromkeys(ids) if self._items.remove(id)]
            for id in gone:
                self._work.remove(id)
            self._sequence += 1
            return len(gone)

    def drop(self, space: str, *, limit: int) -> int:
        with self._lock:
            rules.check_limit(limit)
            rules.check_droppable(self._state, space)
            dropped = 0
            for record in self._items:
                if dropped < limit and record.vectors.pop(space, None) is not None:
                    dropped += 1
            self._sequence += 1
            return dropped

    def get(self, ids: Sequence[str]) -> list[Item]:
        with self._lock:
            self._check_open()
            return [self._item(id) for id in ids if id in self._items]

    def vectors(self, ids: Sequence[str], *, space: str) -> Embeddings:
        with self._lock:
            known = rules.known_space(self._state, space)
            found = [id for id in ids if id in self._items and space in self._items[id].vectors]
            rows = [self._items[id].vectors[space] for id in found]
            matrix = np.stack(rows) if rows else np.empty((0, known.dim), dtype=np.float32)
            return Embeddings(ids=np.array(found, dtype=np.str_), vectors=matrix, space=known)

    def scan(
        self, *, filter: Filter | None, missing: str | None, after: str, limit: int
    ) -> list[Item]:
        with self._lock:
            self._check_open()
            rules.check_limit(limit)
            rules.check_cursor(after)
            if missing is not None:
                rules.known_space(self._state, missing)
            found = []
            ids = self._items.by_id()
            for id in islice(ids, bisect_right(ids, after), None):
                if missing is not None and missing in self._items[id].vectors:
                    continue
                item = self._item(id)
                if filter is None or matches(filter, item.payload):
                    found.append(item)
                    if len(found) == limit:
                        break
            return found

    def search(self, query: Query) -> list[list[Hit]]:
        with self._lock:
            self._check_open()
            space = rules.check_query(self._state, query)
            return search(self._items, query, space=space, spaces=self._state.spaces)

    # ---- work

    def prioritise(self, ids: Sequence[str], priorities: Sequence[float]) -> None:
        with self._lock:
            self._work.prioritise(rules.check_priorities(ids, priorities))
            self._sequence += 1

    def claim(self, *, worker: str, limit: int, seconds: float) -> list[Task]:
        with self._lock:
            self._check_open()
            rules.check_limit(limit)
            claimed = self._work.claim(worker, limit, seconds)
            return [Task(self._item(id), attempts) for id, attempts in claimed]

    def release(self, worker: str) -> int:
        with self._lock:
            return self._work.release(worker)

    def fail(self, reports: Sequence[Failed], *, retry_after: float | None) -> None:
        with self._lock:
            self._check_open()
            for report in reports:
                record = self._items.get(report.id)
                if record is not None and record.revision == report.revision:
                    self._work.fail(report.id, rules.reason(report), retry_after)
            self._sequence += 1

    def failures(self, *, after: str, limit: int) -> list[Failure]:
        with self._lock:
            rules.check_limit(limit)
            rules.check_cursor(after)
            return [
                Failure(id, self._items[id].uri, reason, attempts, when)
                for id, reason, attempts, when in self._work.failures(after, limit)
            ]

    def retry(self) -> int:
        with self._lock:
            self._sequence += 1
            return self._work.retry()

    # ---- inside

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"{self.location}: this gallery is closed")

    def _put_to_work(self, id: str) -> None:
        self._work.remove(id)
        target = self._state.target
        if target is not None and target not in self._items[id].vectors:
            self._work.add(id, self._items[id].number)

    def _item(self, id: str) -> Item:
        return self._items.item(id, spaces=self._state.spaces)
