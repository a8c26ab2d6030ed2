"""A gallery as it was when one head stood: what counts of all the rows that are there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from midspan.errors import StateChanged
from midspan.gallery.records import Counts
from midspan.gallery.rules import possible
from midspan.gallery.stores.turns.conditions import (
    After,
    Among,
    Condition,
    Is,
    Outside,
    Span,
    Within,
)
from midspan.gallery.stores.turns.engine import MOST, Engine, Row
from midspan.gallery.stores.turns.head import Head, read_head
from midspan.gallery.stores.turns.keys import (
    after_item,
    failed_keys,
    first_stamp,
    hashed,
    open_keys,
    state_key,
    text_keys,
    work_keys,
)
from midspan.gallery.stores.turns.records import (
    FIELDS,
    ITEM,
    TRAIL,
    WORK,
    Job,
    Known,
    Record,
    Stored,
)
from midspan.spaces import Embeddings, FloatArray

KEYS = 1000  # looked up at once
BYTES = 16_000_000  # of vectors read at once
ROWS = 1000  # of a size that may be up to 128 kB each


@dataclass(frozen=True, slots=True)
class View:
    engine: Engine
    head: Head
    known: Known

    def undisturbed(self, *, records: bool = True) -> bool:
        """No vector, and no record, that this view saw has been removed since."""
        head = read_head(self.engine)
        same = not records or head.records == self.head.records
        return same and head.vectors == self.head.vectors

    # ---- rows

    @property
    def collection(self) -> str:
        return records_of(self.head)

    def counts_of(self, field: str) -> list[Condition]:
        """What must be asked of a row, by the stamp in this field."""
        return visible(field, self.head.number, self.known.void)

    def count(self, where: Sequence[Condition]) -> int:
        return self.engine.count(
            self.collection, [*where, *self.counts_of("stamp")], time=self.head.time
        )

    def read(self, where: Sequence[Condition], *, limit: int = 0) -> list[Record]:
        return read_records(
            self.engine,
            self.collection,
            [*where, *self.counts_of("stamp")],
            time=self.head.time,
            limit=limit,
        )

    def pages(
        self, where: Sequence[Condition], *, after: str = "", size: int = ROWS
    ) -> Iterator[list[Record]]:
        """In the order of their keys."""
        while page := self.read([After(after), *where], limit=min(size, ROWS)):
            yield page
            after = page[-1].pk

    def light(self, where: Sequence[Condition], fields: Sequence[str]) -> Iterator[list[Row]]:
        """Some fields of all records, in large pages."""
        after = ""
        while page := self.engine.query(
            self.collection,
            [After(after), *where, *self.counts_of("stamp")],
            ["pk", *fields],
            time=self.head.time,
            limit=MOST,
        ):
            yield page
            after = page[-1]["pk"]

    # ---- items

    def by_id(self, ids: Iterable[str]) -> dict[str, Stored]:
        wanted = list(dict.fromkeys(possible(ids)))
        found = {}
        for start in range(0, len(wanted), KEYS):
            part = set(wanted[start : start + KEYS])
            keys = sorted(map(hashed, part))
            for record in newest_last(self.read([Is("kind", ITEM), Among("key", keys)])):
                stored = Stored.of(record)
                if stored.id in part:
                    found[stored.id] = stored
        return found

    def by_row(self, rows: Iterable[int]) -> dict[int, Stored]:
        wanted = list(dict.fromkeys(rows))
        found = {}
        for start in range(0, len(wanted), KEYS):
            part = wanted[start : start + KEYS]
            for record in newest_last(self.read([Is("kind", ITEM), Among("row", part)])):
                found[record.row] = Stored.of(record)
        return found

    def items(
        self,
        *,
        after: str = "",
        masks: Sequence[int] | None = None,
        also: Sequence[Condition] = (),
        size: int = ROWS,
    ) -> Iterator[list[Stored]]:
        """By id."""
        where: list[Condition] = [Is("kind", ITEM), *also]
        if masks is not None:
            where.append(Among("mask", masks))
        for page in self.pages(where, after=after_item(after) if after else "", size=size):
            yield [Stored.of(record) for record in page]

    def vectors(self, stored: Sequence[Stored], space: str) -> Embeddings:
        """Of those that have one, in this order."""
        known, number = self.known.state.spaces[space], self.known.numbers[space]
        having = [item for item in stored if number in item.vectors]
        rows = self.vectors_at(space, [item.vectors[number] for item in having])
        matrix = np.empty((len(having), known.dim), dtype=np.float32)
        for place, item in enumerate(having):
            if item.vectors[number] not in rows:
                raise StateChanged(f"{self.engine.shown}: {item.id!r} was changed; look again")
            matrix[place] = rows[item.vectors[number]]
        return Embeddings(
            ids=np.array([item.id for item in having], dtype=np.str_), vectors=matrix, space=known
        )

    def vectors_at(self, space: str, stamps: Sequence[int]) -> dict[int, FloatArray]:
        found: dict[int, FloatArray] = {}
        for start in range(0, len(stamps), KEYS):
            rows = self.engine.query(
                self.known.collections[space],
                [Among("pk", stamps[start : start + KEYS])],
                ["pk", "vector"],
                time=self.head.time,
            )
            found |= {row["pk"]: np.asarray(row["vector"], dtype=np.float32) for row in rows}
        return found

    def held(self, space: str) -> int:
        """Vectors that the server has, whether an item names them or not."""
        return self.engine.count(
            self.known.collections[space], self.counts_of("pk"), time=self.head.time
        )

    # ---- work, counts

    def jobs(self, rows: Iterable[int]) -> dict[int, Job]:
        """Those of these rows that are on the work list."""
        if self.known.state.target is None:
            return {}
        wanted, found = list(rows), {}
        for start in range(0, len(wanted), KEYS):
            part = wanted[start : start + KEYS]
            for record in newest_last(self.read([*self.working(), Among("row", part)])):
                found[record.row] = Job.of(record)
        return found

    def working(self) -> list[Condition]:
        """The whole work list."""
        return [Is("kind", WORK), Within(work_keys(self.known.epoch))]

    def open(self) -> list[Condition]:
        return [Is("kind", WORK), Within(open_keys(self.known.epoch))]

    def given_up(self) -> list[Condition]:
        return [Is("kind", WORK), Within(failed_keys(self.known.epoch))]

    def all_counts(self) -> Counts:
        known, state = self.known, self.known.state
        by_mask = {mask: self.count([Is("kind", ITEM), Is("mask", mask)]) for mask in known.masks()}
        items = sum(by_mask.values())
        live: dict[str, int] = {}
        before: tuple[int, ...] = ()
        for space in state.live:
            number = known.numbers[space]
            live[space] = sum(by_mask[mask] for mask in known.masks(having=number, lacking=before))
            before = (*before, number)
        lacking = failed = 0
        if state.target is not None:
            masks = known.masks(lacking=(known.numbers[state.target],))
            lacking = sum(by_mask[mask] for mask in masks)
            failed = self.count(self.given_up())
        return Counts(
            items=items,
            stored={
                space: sum(by_mask[mask] for mask in known.masks(having=known.numbers[space]))
                for space in state.spaces
            },
            live=live,
            without=items - sum(live.values()),
            pending=lacking - failed,
            failed=failed,
        )

    def trail(self, limit: int) -> list[Mapping[str, Any]]:
        lines: list[Mapping[str, Any]] = []
        for page in self.pages([Is("kind", TRAIL)], size=limit):
            lines += [record.body for record in page]
            if len(lines) >= limit:
                break
        return lines[:limit]


def vectors(
    view: View, space: str, *, after: int = -1, among: Sequence[Condition] = ()
) -> Iterator[list[Row]]:
    """All rows of a space, by stamp."""
    size = min(MOST, max(1, BYTES // (4 * view.known.state.spaces[space].dim)))
    while page := view.engine.query(
        view.known.collections[space],
        [After(after), *view.counts_of("pk"), *among],
        ["pk", "row", "vector"],
        time=view.head.time,
        limit=size,
    ):
        yield page
        after = page[-1]["pk"]


def newest_last(records: Iterable[Record]) -> list[Record]:
    """A server may bring back what was removed (Milvus 2.3 does): the last one written counts."""
    return sorted(records, key=lambda record: record.stamp)


def records_of(head: Head) -> str:
    return f"{head.gallery}_records"


def visible(field: str, number: int, void: Iterable[tuple[int, int]]) -> list[Condition]:
    """Written by a write that happened: up to this number, and not broken off."""
    return [
        Span(field, high=first_stamp(number + 1)),
        *(Outside(field, first_stamp(first), first_stamp(last + 1)) for first, last in void),
    ]


def read_records(
    engine: Engine, collection: str, where: Sequence[Condition], *, time: int, limit: int = 0
) -> list[Record]:
    rows = engine.query(collection, where, FIELDS, time=time, limit=limit)
    parts = {
        row["pk"]: text_keys(row["stamp"], int(row["body"][1:]))
        for row in rows
        if row["body"].startswith("@")
    }
    texts: dict[str, str] = {}
    for keys in parts.values():
        pieces = engine.query(collection, [Among("pk", keys)], ["pk", "body"], time=time)
        texts |= {piece["pk"]: piece["body"] for piece in pieces}
    records = []
    for row in rows:
        keys = parts.get(row["pk"], [])
        if any(key not in texts for key in keys):
            raise StateChanged(f"{engine.shown}: a record was changed meanwhile; look again")
        text = "".join(texts[key] for key in keys) if keys else row["body"]
        records.append(
            Record(
                pk=row["pk"],
                kind=-1,
                stamp=row["stamp"],
                body=json.loads(text),
                row=row["row"],
                due=row["due"],
                payload=row["payload"],
                parts=len(keys),
            )
        )
    return records


def read_known(engine: Engine, head: Head) -> Known:
    where = [Is("pk", state_key(head.state))]
    found = read_records(engine, records_of(head), where, time=head.time)
    if not found:
        raise StateChanged(f"{engine.shown}: the state was changed meanwhile; look again")
    return Known.of(found[0])
