"""The head of a gallery: one *name* that says how far the gallery has come.

The engine has no transactions, but it puts one name in place of another at one moment, and only if
it is still the name that one thinks (Milvus: of a collection without rows; Qdrant: in a point). So
the name is the lock and the commit point of every write:

    shop__1f3a_free_…    nobody writes
    shop__1f3a_held_…    somebody writes; the rows of that write count for nobody yet
    shop__1f3a_done_…    it has happened; what it replaces is being removed

A writer that dies leaves `held` or `done` behind. After the lease, anybody may rename `held` to
take over: the dead one's number is then void for ever, and should it still live, its own renaming
fails. `done` is finished by whoever comes by, from the list that the writer left.

Every row carries the number of its write, so a reader who knows the head knows what counts.
"""

from __future__ import annotations

import dataclasses
import random
import secrets
import time
from typing import Literal, Self

from midspan.errors import GalleryError, StoreError
from midspan.gallery.stores.turns.engine import Engine

PATIENCE = 120.0  # seconds that a writer waits for its turn
PAUSE = (0.002, 0.02)  # seconds between two looks
HELP_AFTER = 0.5  # seconds after which a reader finishes what a writer left

Phase = Literal["free", "held", "done"]


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    gallery: str  # what the names of its collections begin with
    phase: Phase
    number: int  # of the last write that happened
    state: int  # of the write that made the present state
    records: int  # of the last write that removed records
    vectors: int  # of the last write that removed vectors
    time: int  # of the server, when it happened: what every read waits for
    attempt: int  # the last number that was given to a writer
    turn: str  # of the writer, at random

    @property
    def name(self) -> str:
        numbers = (self.number, self.state, self.records, self.vectors, self.time, self.attempt)
        return "_".join(
            [self.gallery, self.phase, *(f"{number:x}" for number in numbers), self.turn]
        )

    @classmethod
    def from_name(cls, name: str) -> Self | None:
        gallery, *rest = name.rsplit("_", 8)
        if len(rest) != 8 or rest[0] not in ("free", "held", "done"):
            return None
        try:
            number, state, records, vectors, time, attempt = (int(part, 16) for part in rest[1:7])
        except ValueError:
            return None
        return cls(
            gallery=gallery,
            phase=rest[0],  # type: ignore[arg-type]  # one of the three
            number=number,
            state=state,
            records=records,
            vectors=vectors,
            time=time,
            attempt=attempt,
            turn=rest[7],
        )

    def goes_on(self, **changes: int | str) -> Self:
        return dataclasses.replace(self, turn=secrets.token_hex(4), **changes)  # type: ignore[arg-type]


def read_head(engine: Engine) -> Head:
    head = engine.head()
    if head is None:
        raise GalleryError(
            f"there is no gallery at {engine.shown}; make one with midspan gallery create …"
        )
    return head


def move(engine: Engine, before: Head, after: Head) -> bool:
    """False if the head is no longer where it was."""
    if engine.swap(before, after):
        return True
    return read_head(engine) == after  # the answer to a first attempt was lost on the way


def pause() -> None:
    time.sleep(random.uniform(*PAUSE))


def take(engine: Engine) -> Head:
    """Wait for one's turn. The head may be `done`: then its writer's list comes first."""
    begun = seen_at = time.monotonic()
    seen = ""
    while time.monotonic() - begun < PATIENCE:
        head = read_head(engine)
        if head.phase == "done":
            return head
        if head.turn != seen:
            seen, seen_at = head.turn, time.monotonic()
        if head.phase == "free" or time.monotonic() - seen_at > engine.lease:
            mine = head.goes_on(phase="held", attempt=head.attempt + 1)
            if move(engine, head, mine):
                return mine
        else:
            pause()
    raise StoreError(
        f"{engine.shown}: others wrote all the time for {PATIENCE:g} s; repeat the step"
    )
