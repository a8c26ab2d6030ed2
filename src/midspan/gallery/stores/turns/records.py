"""Records: what the rows of a gallery hold."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, Self

from midspan.gallery.items import Item
from midspan.gallery.records import Entry, State
from midspan.gallery.stores.turns.engine import Row
from midspan.gallery.stores.turns.keys import (
    failed_key,
    first_stamp,
    hashed,
    item_key,
    state_key,
    text_keys,
    trail_key,
    work_key,
)
from midspan.spaces import Space

PART = 60_000  # characters of one row; longer texts are kept in parts
GIVEN_UP = 1e300  # when a failed task is due again
FIELDS = ("pk", "stamp", "row", "due", "body", "payload")

ITEM, WORK, TRAIL, STATE, LIST, TEXT = range(6)

Plain = Callable[[Mapping[str, Any], int], bool]  # see Engine.plain


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One row, or several if the body is long."""

    pk: str
    kind: int
    stamp: int
    body: Mapping[str, Any]
    key: int = 0
    row: int = 0
    mask: int = 0
    due: float = 0.0
    owner: int = 0
    payload: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weight: int = 0  # bytes of the payload
    parts: int = 0  # of a body that was read

    def rows(self) -> list[Row]:
        text = json.dumps(self.body, separators=(",", ":"))  # ASCII: one byte a character
        pieces = [text[at : at + PART] for at in range(0, len(text), PART)]
        if len(pieces) == 1:
            return [self._row(self.pk, self.kind, text)]
        keys = text_keys(self.stamp, len(pieces))
        return [
            self._row(self.pk, self.kind, f"@{len(pieces)}"),
            *(
                dataclasses.replace(self, payload={}, weight=0)._row(key, TEXT, piece)
                for key, piece in zip(keys, pieces, strict=True)
            ),
        ]

    def _row(self, pk: str, kind: int, text: str) -> Row:
        return {
            "pk": pk,
            "kind": kind,
            "stamp": self.stamp,
            "key": self.key,
            "row": self.row,
            "mask": self.mask,
            "due": self.due,
            "owner": self.owner,
            "body": text,
            "payload": self.payload,
            "weight": self.weight,
        }

    def keys(self) -> list[str]:
        """Of all its rows."""
        return [self.pk, *text_keys(self.stamp, self.parts)]


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """An item as it is recorded. `row` is its identity: a replacement is another row."""

    id: str
    uri: str | None
    payload: Mapping[str, Any]
    revision: int
    created: float
    changed: float
    number: int  # place in the order of adding
    row: int
    vectors: Mapping[int, int]  # stamps of its vectors, by the number of the space
    keys: tuple[str, ...] = ()  # of the rows that it was read from

    @property
    def mask(self) -> int:
        return sum(1 << space for space in self.vectors)

    def record(self, stamp: int, *, plain: Plain) -> Record:
        """A payload that the engine cannot filter by as we mean it is kept as text."""
        body: dict[str, Any] = {
            "id": self.id,
            "uri": self.uri,
            "revision": self.revision,
            "created": self.created,
            "changed": self.changed,
            "number": self.number,
            "vectors": {str(space): at for space, at in self.vectors.items()},
        }
        payload: Mapping[str, Any] = self.payload
        weight = len(json.dumps(payload))
        if not plain(payload, weight):
            body["payload"], payload, weight = payload, {}, 0
        return Record(
            pk=item_key(self.id, stamp),
            kind=ITEM,
            stamp=stamp,
            body=body,
            key=hashed(self.id),
            row=self.row,
            mask=self.mask,
            owner=int("payload" in body),  # to be looked at by filters, whatever the engine says
            payload=payload,
            weight=weight,
        )

    @classmethod
    def of(cls, record: Record) -> Self:
        body = record.body
        return cls(
            id=body["id"],
            uri=body["uri"],
            payload=body.get("payload", record.payload),
            revision=body["revision"],
            created=body["created"],
            changed=body["changed"],
            number=body["number"],
            row=record.row,
            vectors={int(space): at for space, at in body["vectors"].items()},
            keys=tuple(record.keys()),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A task on the work list."""

    id: str
    number: int
    row: int
    priority: float = 0.0
    due: float = 0.0
    worker: str | None = None
    attempts: int = 0
    reason: str = ""
    when: float = 0.0
    keys: tuple[str, ...] = ()

    def record(self, stamp: int, *, epoch: int) -> Record:
        body = {
            field: getattr(self, field)
            for field in ("id", "number", "priority", "worker", "attempts", "reason", "when")
        }
        key = work_key(epoch, self.priority, self.number, stamp)
        if self.due == GIVEN_UP:
            key = failed_key(epoch, self.id, stamp)
        return Record(
            pk=key,
            kind=WORK,
            stamp=stamp,
            body=body,
            key=hashed(self.id),
            row=self.row,
            due=self.due,
            owner=0 if self.worker is None else hashed(self.worker),
        )

    @classmethod
    def of(cls, record: Record) -> Self:
        return cls(row=record.row, due=record.due, keys=tuple(record.keys()), **record.body)


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """The state, and what only this store must know beside it."""

    state: State
    numbers: Mapping[str, int]  # of the spaces, by fingerprint
    collections: Mapping[str, str]  # of the spaces' vectors
    settings: Mapping[str, str]  # of the collections, as they were given at the first
    indexed: Mapping[str, Mapping[str, Any]]  # approximate indexes that this store built, by space
    epoch: int = 0  # number of the write that made the present work list
    listing: str | None = None  # it is being made, and holds the ids up to this one; None: all
    void: tuple[
        tuple[int, int], ...
    ] = ()  # numbers, first and last, of writes that were broken off
    parts: int = 0  # of the record that it was read from

    def record(self, number: int) -> Record:
        state = self.state
        body = {
            "version": state.version,
            "spaces": [json.loads(space.to_json()) for space in state.spaces.values()],
            "live": state.live,
            "target": state.target,
            "upgrade": state.upgrade,
            "numbers": self.numbers,
            "collections": self.collections,
            "settings": self.settings,
            "indexed": self.indexed,
            "epoch": self.epoch,
            "listing": self.listing,
            "void": self.void,
        }
        return Record(pk=state_key(number), kind=STATE, stamp=first_stamp(number), body=body)

    @classmethod
    def of(cls, record: Record) -> Self:
        body = record.body
        spaces = [Space.from_json(json.dumps(space)) for space in body["spaces"]]
        return cls(
            state=State(
                version=body["version"],
                spaces={space.fingerprint: space for space in spaces},
                live=tuple(body["live"]),
                target=body["target"],
                upgrade=body["upgrade"],
            ),
            numbers=body["numbers"],
            collections=body["collections"],
            settings=body["settings"],
            indexed=body["indexed"],
            epoch=body["epoch"],
            listing=body["listing"],
            void=tuple((first, last) for first, last in body["void"]),
            parts=record.parts,
        )

    def item(self, stored: Stored) -> Item:
        return Item(
            id=stored.id,
            uri=stored.uri,
            payload=dict(stored.payload),
            revision=stored.revision,
            created=stored.created,
            changed=stored.changed,
            spaces=tuple(
                space for space in self.state.spaces if self.numbers[space] in stored.vectors
            ),
        )

    def masks(self, *, having: int | None = None, lacking: tuple[int, ...] = ()) -> list[int]:
        """All that a mask can be of an item with, and without, vectors in these spaces."""
        every = [0]
        for number in self.numbers.values():
            every += [mask | 1 << number for mask in every]
        return [
            mask
            for mask in every
            if (having is None or mask >> having & 1) and not any(mask >> n & 1 for n in lacking)
        ]


def line(entry: Entry, stamp: int) -> Record:
    body = {"who": entry.who, "what": entry.what, "details": entry.details, "when": entry.when}
    return Record(pk=trail_key(stamp), kind=TRAIL, stamp=stamp, body=body)
