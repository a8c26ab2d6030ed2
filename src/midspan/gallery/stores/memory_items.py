"""What a gallery in memory holds: items by id, in the order of ids and in that of adding."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from midspan.gallery.items import Draft, Item
from midspan.spaces import FloatArray


@dataclasses.dataclass(slots=True)
class Record:
    """One item; `number` is its place in the order of adding."""

    number: int
    uri: str | None
    payload: str  # JSON, so that no caller can change what is stored
    revision: int
    created: float
    changed: float
    vectors: dict[str, FloatArray]  # by space


class Items:
    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._by_id: list[str] | None = None  # in order; None after a change of the ids
        self._next_number = 1

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, id: str) -> bool:
        return id in self._records

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records.values())

    def __getitem__(self, id: str) -> Record:
        return self._records[id]

    def get(self, id: str) -> Record | None:
        return self._records.get(id)

    def missing(self, ids: Iterable[str]) -> list[str]:
        return [id for id in ids if id not in self._records]

    def put(self, draft: Draft, *, now: float) -> None:
        """New, or in the place of what was there; without vectors."""
        before = self._records.get(draft.id)
        self._records[draft.id] = Record(
            number=before.number if before else self._next_number,
            uri=draft.uri,
            payload=draft.json,
            revision=before.revision + 1 if before else 1,
            created=_given(draft.created, before.created if before else now),
            changed=_given(draft.changed, now),
            vectors={},
        )
        if before is None:
            self._next_number += 1
            self._by_id = None

    def remove(self, id: str) -> bool:
        """Whether it was there."""
        self._by_id = None
        return self._records.pop(id, None) is not None

    def clear(self) -> None:
        self._records.clear()
        self._by_id = None

    def by_id(self) -> list[str]:
        if self._by_id is None:
            self._by_id = sorted(self._records)
        return self._by_id

    def by_number(self) -> list[str]:
        return sorted(self._records, key=lambda id: self._records[id].number)

    def stored(self, space: str) -> int:
        """Vectors of this space."""
        return sum(space in record.vectors for record in self)

    def item(self, id: str, *, spaces: Iterable[str]) -> Item:
        """As callers see it; `spaces` are those that the gallery knows."""
        record = self._records[id]
        return Item(
            id=id,
            uri=record.uri,
            payload=json.loads(record.payload),
            revision=record.revision,
            created=record.created,
            changed=record.changed,
            spaces=tuple(space for space in spaces if space in record.vectors),
        )


def live_space(preference: Sequence[str], vectors: Mapping[str, FloatArray]) -> str | None:
    """The live rule."""
    return next((space for space in preference if space in vectors), None)


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
