"""A write from its turn to its end: rows first, then the head's new name, then the removals."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Self

from midspan.errors import StoreError
from midspan.gallery.stores.turns.conditions import Is
from midspan.gallery.stores.turns.engine import Engine, Gone
from midspan.gallery.stores.turns.head import Head, move, read_head
from midspan.gallery.stores.turns.keys import first_stamp, list_key, state_key, text_keys
from midspan.gallery.stores.turns.records import LIST, Known, Record
from midspan.gallery.stores.turns.view import View, read_known, read_records, records_of
from midspan.spaces import FloatArray

VOID = 100  # broken-off writes that are remembered
ROWS = 2000  # records that are inserted together


class Turn:
    """What one writer writes while the gallery waits for it. Nothing counts before `commit`."""

    def __init__(self, engine: Engine, head: Head, known: Known) -> None:
        self.engine, self.head = engine, head
        self.view = View(engine, head, known)
        self._stamps = count(first_stamp(head.attempt) + 1)  # the first is the state's
        self._known: Known | None = None
        self._waiting: list[Record] = []  # to be inserted together
        self._dead: dict[str, list[str | int]] = {}  # keys, by collection
        self._dropped: list[str] = []  # collections
        self._wrote = False
        self._beaten = time.monotonic()
        if head.attempt > head.number + 1:  # somebody was broken off: never look at that
            void = (*known.void, (head.number + 1, head.attempt - 1))[-VOID:]
            self.change(dataclasses.replace(known, void=void))

    # ---- what is written

    def stamp(self) -> int:
        made = next(self._stamps)
        if made >= first_stamp(self.head.attempt + 1):  # it would be taken for the next write's
            raise StoreError(
                f"{self.engine.shown}: one write can have {first_stamp(1):,} rows and this one has "
                "more; write in batches, or split the gallery into smaller ones"
            )
        return made

    def put(self, records: Iterable[Record]) -> None:
        for record in records:
            self._waiting.append(record)
            if len(self._waiting) >= ROWS:
                self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._wrote = True
        rows = (row for record in waiting for row in record.rows())
        self.engine.insert(records_of(self.head), rows, beat=self.beat)

    def put_vectors(self, space: str, rows: Iterable[tuple[int, int, FloatArray]]) -> None:
        """(stamp, row of the item, vector)."""
        self._wrote = True
        self.engine.insert_vectors(
            self.known.collections[space],
            ({"pk": stamp, "row": row, "vector": vector} for stamp, row, vector in rows),
            metric=self.known.state.spaces[space].metric,
            beat=self.beat,
        )

    def remove(self, keys: Iterable[str]) -> None:
        """Records, by the keys of all their rows."""
        if found := list(keys):
            self._dead.setdefault(records_of(self.head), []).extend(found)

    def remove_vectors(self, space: str, stamps: Iterable[int]) -> None:
        if found := list(stamps):
            self._dead.setdefault(self.known.collections[space], []).extend(found)

    def drop(self, collection: str) -> None:
        self._dropped.append(collection)

    @property
    def known(self) -> Known:
        return self._known or self.view.known

    def change(self, known: Known) -> None:
        self._known = known

    def beat(self) -> None:
        """Say that this writer lives, before the others give up on it."""
        if time.monotonic() - self._beaten < self.engine.lease / 4:
            return
        self._beaten = time.monotonic()
        self._move(self.head.goes_on())

    # ---- its end

    def commit(self) -> None:
        number, records = self.head.attempt, records_of(self.head)
        if not (self._wrote or self._waiting or self._dead or self._dropped or self._known):
            return self.give_up()
        changes = {"number": number}
        if self._known is not None:
            self.put([self._known.record(number)])
            self.remove([state_key(self.head.state), *self._texts_of_state(self.view.known)])
            changes["state"] = number
        removals = None
        if self._dead or self._dropped:
            body = {"dead": self._dead, "dropped": self._dropped}
            record = Record(pk=list_key(number), kind=LIST, stamp=self.stamp(), body=body)
            removals = Removals.of(record, parts=len(record.rows()) - 1)
            self.put([record])
            changes["records"] = number
            if self._dead.keys() - {records} or self._dropped:
                changes["vectors"] = number
        if self._waiting:
            self._flush()
        phase = "done" if removals else "free"
        self._move(self.head.goes_on(phase=phase, time=self.engine.now(), **changes))
        if removals:
            with suppress(StoreError):  # it has happened: if need be, the next one clears up
                removals.carry_out(self.engine, self.head)
        return None

    def _texts_of_state(self, before: Known) -> list[str]:
        return text_keys(first_stamp(self.head.state), before.parts)

    def give_up(self) -> None:
        """As if it had never been. Its number is not used again if it wrote something."""
        if self.head.phase != "held":
            return  # too late: it has happened
        attempt = self.head.attempt if self._wrote else self.head.attempt - 1
        move(self.engine, self.head, self.head.goes_on(phase="free", attempt=attempt))

    def _move(self, after: Head) -> None:
        if not move(self.engine, self.head, after) and not self._happened(after):
            raise StoreError(
                f"{self.engine.shown}: this write took longer than the lease of "
                f"{self.engine.lease:g} s, and another writer went on; nothing of it was "
                "written: repeat it"
            )
        self.head = after

    def _happened(self, after: Head) -> bool:
        """The answer may be lost, and others have written since: only the record tells."""
        if after.number != self.head.attempt:
            return False
        head = read_head(self.engine)
        if head.number < after.number:
            return False
        void = read_known(self.engine, head).void
        return not any(first <= after.number <= last for first, last in void)


@dataclasses.dataclass(frozen=True, slots=True)
class Removals:
    """What a write replaces. To carry it out twice does no harm."""

    dead: Mapping[str, Sequence[str | int]]  # keys, by collection
    dropped: Sequence[str]  # collections
    own: Sequence[str]  # keys of the list itself

    @classmethod
    def of(cls, record: Record, *, parts: int) -> Self:
        keys = [record.pk, *text_keys(record.stamp, parts)]
        return cls(record.body["dead"], record.body["dropped"], keys)

    def carry_out(self, engine: Engine, head: Head) -> None:
        records = records_of(head)
        for collection, keys in self.dead.items():
            if collection != records:
                with suppress(Gone):  # another helper was faster, and dropped it later
                    engine.delete(collection, keys)
        for collection in self.dropped:
            engine.drop(collection)
        # The list goes last: as long as it is there, there may be something to do.
        engine.delete(records, [*self.dead.get(records, ()), *self.own])
        move(engine, head, head.goes_on(phase="free", time=engine.now()))


def clear(engine: Engine, head: Head) -> None:
    """Finish what another writer left."""
    where = [Is("pk", list_key(head.number))]
    for record in read_records(engine, records_of(head), where, time=head.time):
        return Removals.of(record, parts=record.parts).carry_out(engine, head)
    move(engine, head, head.goes_on(phase="free", time=engine.now()))
    return None
