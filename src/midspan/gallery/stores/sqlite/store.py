"""`shop.midspan`: the embedded store. One SQLite file is the record, memory holds the index.

Every write is a transaction in WAL mode with synchronous=FULL: when a method returns, it is on the
disk. Any number of processes may have the file open. The index is read at the first search, so
that a process that only writes never pays for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from midspan.gallery import rules
from midspan.gallery.filters import Filter
from midspan.gallery.index.search import search as search_mirror
from midspan.gallery.items import Draft, Hit, Item, Payload
from midspan.gallery.quantise import Quantise
from midspan.gallery.records import Counts, Entry, Failed, Failure, Mode, Query, State, Task
from midspan.gallery.stores.sqlite import rows, settings, work, writes
from midspan.gallery.stores.sqlite.bitmaps import Bitmaps
from midspan.gallery.stores.sqlite.database import Database, check_file
from midspan.gallery.stores.sqlite.follower import Follower
from midspan.gallery.stores.sqlite.hits import read_hits
from midspan.gallery.stores.sqlite.pulse import Pulse
from midspan.gallery.stores.sqlite.schema import create_file
from midspan.gallery.stores.sqlite.texts import Texts
from midspan.spaces import Embeddings, Space


class _Seen(NamedTuple):
    """What a process knows of the state, as of the counter of commits that it read before."""

    commits: int
    state: State
    numbers: dict[str, int]  # of each space's table
    spaces: dict[int, Space]  # by that number


class SqliteStore:
    def __init__(self, location: str) -> None:
        self.location = location
        check_file(Path(location))
        self._database = Database(Path(location))
        self._texts = Texts(self._database)
        self._pulse = Pulse(Path(location))
        self._follower = Follower(self._database, self._texts)
        self._bitmaps = Bitmaps()
        self._seen: _Seen | None = None

    @classmethod
    def create(
        cls, location: str, space: Space, *, entry: Entry, quantise: Quantise = "none"
    ) -> Self:
        entry = rules.check_entry(entry, when=0.0)
        state = rules.first_state(space)
        create_file(Path(location), state, entry=entry, quantise=quantise)
        return cls(location)

    @classmethod
    def open(cls, location: str) -> Self:
        return cls(location)

    def close(self) -> None:
        self._follower.close()
        self._pulse.close()
        self._database.close()

    # ---- the gallery as a whole

    def state(self) -> State:
        return self._known().state

    def _known(self) -> _Seen:
        """Read again only if something changed."""
        commits, seen = self._database.commits(), self._seen
        if seen is None or seen.commits != commits:
            with self._database.reading() as connection:
                state, numbers = rows.read_state(connection)
            spaces = {number: state.spaces[space] for space, number in numbers.items()}
            seen = self._seen = _Seen(commits, state, numbers, spaces)
        return seen

    def change(self, state: State, *, entry: Entry) -> State:
        with self._database.writing() as connection:
            return writes.change(connection, state, entry)

    def record(self, entry: Entry) -> None:
        with self._database.writing() as connection:
            writes.record(connection, entry)

    def trail(self, *, limit: int) -> list[Entry]:
        with self._database.reading() as connection:
            lines = connection.execute(
                "SELECT who, what, details, moment FROM trail ORDER BY line DESC LIMIT ?",
                (rules.check_limit(limit),),
            )
            return [
                Entry(who, what, json.loads(details), when) for who, what, details, when in lines
            ]

    def sequence(self) -> int:
        with self._database.reading() as connection:
            return rows.read_sequence(connection)

    def count(self) -> Counts:
        with self._database.reading() as connection:
            return rows.count_all(connection, *rows.read_state(connection))

    def optimise(self) -> None:
        self._follower.optimise()

    def quantise(self) -> Quantise:
        with self._database.reading() as connection:
            return settings.read_quantise(connection)

    def set_quantise(self, value: Quantise, *, entry: Entry) -> None:
        with self._database.writing() as connection:
            settings.write_quantise(connection, value)
            writes.record(connection, entry)

    def check(self) -> list[str]:
        """SQLite's own check of the file, and of the references between tables."""
        with self._database.reading() as connection:
            lines = [line for (line,) in connection.execute("PRAGMA integrity_check(20)")]
            broken = connection.execute("PRAGMA foreign_key_check").fetchall()
        problems = [f"damaged file: {line}" for line in lines if line != "ok"]
        if broken:
            problems.append(f"{len(broken)} rows belong to items that are not there")
        return problems

    # ---- items

    def upsert(self, drafts: Sequence[Draft], vectors: Sequence[Embeddings], *, mode: Mode) -> None:
        with self._database.writing() as connection:
            writes.upsert(connection, drafts, vectors, mode=mode)

    def fill(self, vectors: Embeddings, *, revisions: Sequence[int]) -> int:
        with self._database.writing() as connection:
            return writes.fill(connection, vectors, revisions)

    def annotate(self, payloads: Mapping[str, Payload]) -> None:
        with self._database.writing() as connection:
            writes.annotate(connection, payloads)

    def delete(self, ids: Sequence[str]) -> int:
        with self._database.writing() as connection:
            return writes.delete(connection, ids)

    def drop(self, space: str, *, limit: int) -> int:
        with self._database.writing() as connection:
            return writes.drop(connection, space, rules.check_limit(limit))

    def get(self, ids: Sequence[str]) -> list[Item]:
        with self._database.reading() as connection:
            _, numbers = rows.read_state(connection)
            found = rows.find(connection, ids)
            items = rows.read_items(connection, numbers, list(found.values()))
            return [items[found[id]] for id in ids if id in found]

    def vectors(self, ids: Sequence[str], *, space: str) -> Embeddings:
        with self._database.reading() as connection:
            state, numbers = rows.read_state(connection)
            known = rules.known_space(state, space)
            return rows.read_vectors(connection, numbers[space], ids, known)

    def scan(
        self, *, filter: Filter | None, missing: str | None, after: str, limit: int
    ) -> list[Item]:
        with self._database.reading() as connection:
            state, numbers = rows.read_state(connection)
            if missing is not None:
                rules.known_space(state, missing)
            return rows.scan_items(
                connection,
                numbers,
                filter=filter,
                missing=missing,
                after=after,
                limit=rules.check_limit(limit),
            )

    # ---- search

    def search(self, query: Query) -> list[list[Hit]]:
        started = time.perf_counter()
        seen = self._seen
        if seen is None or query.seen is not seen.state:
            seen = self._known()
        state, numbers = seen.state, seen.numbers
        rules.check_query(state, query)
        allowed = None
        if query.filter is not None:
            with self._database.reading() as connection:
                allowed = self._bitmaps.of(connection, query.filter)
        live = [numbers[fingerprint] for fingerprint in query.live]
        mirror = self._follower.catch_up(seen.commits, wanted=frozenset(live))
        if mirror.version < state.version:  # changed after the commits were counted
            mirror = self._follower.catch_up(self._database.commits(), wanted=frozenset(live))
        found = search_mirror(
            mirror,
            query.vectors,
            k=query.k,
            live=live,
            among=[numbers[fingerprint] for fingerprint in query.among],
            allowed=allowed,
            exact=query.exact,
            version=None if query.seen is None else query.seen.version,
        )
        hits = read_hits(self._texts, found, seen.spaces, query)
        if state.target is not None:  # somebody may be at work, and must not be in the way
            self._pulse.note(time.perf_counter() - started)
        return hits

    def live_p99(self) -> float | None:
        """Seconds that searches of any process take at present; None if there are none."""
        return self._pulse.p99()

    # ---- work

    def prioritise(self, ids: Sequence[str], priorities: Sequence[float]) -> None:
        with self._database.writing() as connection:
            work.prioritise(connection, ids, priorities)

    def claim(self, *, worker: str, limit: int, seconds: float) -> list[Task]:
        with self._database.writing(durable=False) as connection:
            return work.claim(connection, worker, rules.check_limit(limit), seconds)

    def release(self, worker: str) -> int:
        with self._database.writing(durable=False) as connection:
            return work.release(connection, worker)

    def fail(self, reports: Sequence[Failed], *, retry_after: float | None) -> None:
        with self._database.writing() as connection:
            work.fail(connection, reports, retry_after)

    def failures(self, *, after: str, limit: int) -> list[Failure]:
        with self._database.reading() as connection:
            return work.failures(connection, after, rules.check_limit(limit))

    def retry(self) -> int:
        with self._database.writing() as connection:
            return work.retry(connection)
