"""What a store must do. Every store passes tests/gallery/test_contract.py with the same results.

Nothing is optional. A write is one transaction: it happened and survives the death of the process,
or it raised and nothing happened. Methods may be called from several threads; several processes may
have one gallery open, and each sees what the others acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from midspan.gallery.filters import Filter
from midspan.gallery.items import Draft, Hit, Item, Payload
from midspan.gallery.records import Counts, Entry, Failed, Failure, Mode, Query, State, Task
from midspan.spaces import Embeddings, Space


class Store(Protocol):
    location: str

    @classmethod
    def create(cls, location: str, space: Space, *, entry: Entry) -> Self:
        """An empty gallery whose live vectors are in `space`; refused if there is one already."""
        ...

    @classmethod
    def open(cls, location: str) -> Self: ...

    def close(self) -> None: ...

    # ---- the gallery as a whole

    def state(self) -> State: ...

    def change(self, state: State, *, entry: Entry) -> State:
        """Put this state in place of the version it was made from, with a line in the trail.

        A new target makes the work list anew. A space can be forgotten when none of its vectors
        are left. Raises StateChanged if the version is no longer the present one.
        """
        ...

    def record(self, entry: Entry) -> None:
        """A line in the audit trail."""
        ...

    def trail(self, *, limit: int) -> list[Entry]:
        """The last lines of the audit trail, newest first."""
        ...

    def sequence(self) -> int:
        """A number that is larger after each write, whichever process made it."""
        ...

    def count(self) -> Counts: ...

    def optimise(self) -> None:
        """Bring the search index up to date and wait for it; searches go on meanwhile."""
        ...

    def check(self) -> list[str]:
        """What is wrong with the stored data itself; empty if nothing is."""
        ...

    # ---- items

    def upsert(self, drafts: Sequence[Draft], vectors: Sequence[Embeddings], *, mode: Mode) -> None:
        """Write items with all of their vectors; a replaced item loses its former vectors."""
        ...

    def fill(self, vectors: Embeddings, *, revisions: Sequence[int]) -> int:
        """Give these vectors to items that have none in the space and are still at the revision.

        The others are left alone, so that doing it twice does no harm. Returns how many were
        written.
        """
        ...

    def annotate(self, payloads: Mapping[str, Payload]) -> None:
        """Change payloads and nothing else; unknown ids are an error."""
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Returns how many there were."""
        ...

    def drop(self, space: str, *, limit: int) -> int:
        """Remove up to `limit` vectors of a space that is neither live nor the target."""
        ...

    def get(self, ids: Sequence[str]) -> list[Item]:
        """Those that are there, in the order asked for."""
        ...

    def vectors(self, ids: Sequence[str], *, space: str) -> Embeddings:
        """Of those that have a vector in the space, in the order asked for."""
        ...

    def scan(
        self, *, filter: Filter | None, missing: str | None, after: str, limit: int
    ) -> list[Item]:
        """The next items by id, after this one; `missing` is a space they have no vector in."""
        ...

    def search(self, query: Query) -> list[list[Hit]]:
        """The k best items for each query vector, best first, equal scores by id."""
        ...

    # ---- the work that a target makes: by falling priority, then in the order of adding

    def prioritise(self, ids: Sequence[str], priorities: Sequence[float]) -> None:
        """Ids that are not on the work list are passed over."""
        ...

    def claim(self, *, worker: str, limit: int, seconds: float) -> list[Task]:
        """The next tasks that nobody holds; they are this worker's for so many seconds."""
        ...

    def release(self, worker: str) -> int:
        """Give back what this worker holds."""
        ...

    def fail(self, reports: Sequence[Failed], *, retry_after: float | None) -> None:
        """Put off for so many seconds, or give up (None). Other revisions are left alone."""
        ...

    def failures(self, *, after: str, limit: int) -> list[Failure]:
        """What was given up, by id."""
        ...

    def retry(self) -> int:
        """Put everything that was given up back on the work list."""
        ...
