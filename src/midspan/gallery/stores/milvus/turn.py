"""A write from its turn to its end: rows first, then the head's new name, then the removals."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from midspan.errors import StoreError
from midspan.gallery.stores.milvus.head import Head, move, read_head
from midspan.gallery.stores.milvus.records import (
    LIST,
    Known,
    Record,
    first_stamp,
    list_key,
    state_key,
    text_keys,
)
from midspan.gallery.stores.milvus.server import NOT_FOUND, Refused, Row, Server
from midspan.gallery.stores.milvus.view import View, read_known, read_records, records_of
from midspan.spaces import FloatArray

VOID = 100  # broken-off writes that are remembered


class Turn:
    """What one writer writes while the gallery waits for it. Nothing counts before `commit`."""

    def __init__(self, server: Server, head: Head, known: Known) -> None:
        self.server, self.head = server, head
        self.view = View(server, head, known)
        self._stamps = count(first_stamp(head.attempt) + 1)  # the first is the state's
        self._known: Known | None = None
        self._dead: dict[str, list[str | int]] = {}  # keys, by collection
        self._dropped: list[str] = []  # collections
        self._wrote = False
        self._beaten = time.monotonic()
        if head.attempt > head.number + 1:  # somebody was broken off: never look at that
            void = (*known.void, (head.number + 1, head.attempt - 1))[-VOID:]
            self.change(dataclasses.replace(known, void=void))

    # ---- what is written

    def stamp(self) -> int:
        return next(self._stamps)

    def put(self, records: Iterable[Record]) -> None:
        self._insert(records_of(self.head), (row for record in records for row in record.rows()))

    def put_vectors(self, space: str, rows: Iterable[tuple[int, int, FloatArray]]) -> None:
        """(stamp, row of the item, vector)."""
        self._insert(
            self.known.collections[space],
            ({"pk": stamp, "row": row, "vector": vector} for stamp, row, vector in rows),
        )

    def _insert(self, collection: str, rows: Iterable[Row]) -> None:
        self._wrote = True
        self.server.insert(collection, rows, beat=self.beat)

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
        if time.monotonic() - self._beaten < self.server.place.lease / 4:
            return
        self._beaten = time.monotonic()
        self._move(self.head.goes_on())

    # ---- its end

    def commit(self) -> None:
        before, number = self.view.known, self.head.attempt
        if not (self._wrote or self._dead or self._dropped) and self._known is None:
            return self.give_up()
        changes = {"number": number, "state": self.head.state}
        if self._known is not None:
            self.put([self._known.record(number)])
            self.remove([state_key(self.head.state), *self._texts_of_state(before)])
            changes["state"] = number
        if self._dead or self._dropped:
            self.put([self._list(number)])
            changes["records"] = number
            if self._dead.keys() - {records_of(self.head)} or self._dropped:
                changes["vectors"] = number
        after = self.head.goes_on(
            phase="done" if "records" in changes else "free", time=self.server.now(), **changes
        )
        self._move(after)
        if after.phase == "done":
            try:
                clear(self.server, after)
            except StoreError:
                return  # it has happened; whoever comes next clears it
        return None

    def _texts_of_state(self, before: Known) -> list[str]:
        return text_keys(first_stamp(self.head.state), before.parts)

    def _list(self, number: int) -> Record:
        body = {"dead": self._dead, "dropped": self._dropped}
        return Record(pk=list_key(number), kind=LIST, stamp=self.stamp(), body=body)

    def give_up(self) -> None:
        """As if it had never been. Its number is not used again if it wrote something."""
        attempt = self.head.attempt if self._wrote else self.head.attempt - 1
        move(self.server, self.head, self.head.goes_on(phase="free", attempt=attempt))

    def _move(self, after: Head) -> None:
        if not move(self.server, self.head, after) and not self._happened(after):
            raise StoreError(
                f"{self.server.shown}: this write took longer than the lease of "
                f"{self.server.place.lease:g} s, and another writer went on; nothing of it was "
                "written: repeat it"
            )
        self.head = after

    def _happened(self, after: Head) -> bool:
        """The answer may be lost, and others have written since: only the record tells."""
        if after.number != self.head.attempt:
            return False
        head = read_head(self.server)
        if head.number < after.number:
            return False
        void = read_known(self.server, head).void
        return not any(first <= after.number <= last for first, last in void)


def clear(server: Server, head: Head) -> None:
    """Remove what the write before replaced; to do it twice does no harm."""
    found = read_records(
        server, records_of(head), f'pk == "{list_key(head.number)}"', time=head.time
    )
    for record in found:
        dead: Mapping[str, Sequence[str | int]] = record.body["dead"]
        for collection, keys in dead.items():
            try:
                server.delete(collection, keys)
            except Refused as error:
                if error.code != NOT_FOUND:  # dropped by another helper
                    raise
        for collection in record.body["dropped"]:
            server.drop(collection)
        server.delete(records_of(head), record.keys())
    move(server, head, head.goes_on(phase="free", time=server.now()))
