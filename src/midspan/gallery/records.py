"""The values that cross the border of a store: state, counts, queries, work, audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from midspan.gallery.filters import Filter
from midspan.gallery.items import Item
from midspan.spaces import FloatArray, Space

Mode = Literal["add", "replace", "put"]  # ids must be new, must be there, may be either


@dataclass(frozen=True, slots=True)
class State:
    """The one row that decides which vectors answer.

    `live` is a preference list: an item's live vector is that of the first space in it that the
    item has a vector in. (old,) before an upgrade, (new, old) during one, (new,) after it; back to
    (old,) is a rollback. Every item shall get a vector in `target`; those that have none are the
    gallery's work. `upgrade` is the upgrade's own record, JSON that the gallery only keeps.

    To change it: `store.change(dataclasses.replace(state, live=…), entry=…)`.
    """

    version: int  # grows with each change; a change of an older version is refused
    spaces: Mapping[str, Space]  # by fingerprint; a vector of any other space is refused
    live: tuple[str, ...]
    target: str | None = None
    upgrade: Mapping[str, Any] | None = None

    def writable(self) -> tuple[str, ...]:
        """Fingerprints of the spaces that vectors may be added in."""
        if self.target is None or self.target in self.live:
            return self.live
        return (*self.live, self.target)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the audit trail."""

    who: str
    what: str  # "create", "upgrade start", …
    details: Mapping[str, Any] = field(default_factory=dict)
    when: float = 0.0  # seconds since 1970; the store sets it


@dataclass(frozen=True, slots=True)
class Counts:
    """items = sum of `live` + without; a target: items = done + pending + failed."""

    items: int
    stored: Mapping[str, int]  # vectors by space
    live: Mapping[str, int]  # items by the space of their live vector
    without: int  # items with no live vector
    pending: int  # items that still lack a vector in the target
    failed: int  # items that were given up for the target

    @property
    def done(self) -> int:
        """Items with a vector in the target; all of them if there is no target."""
        return self.items - self.pending - self.failed


@dataclass(frozen=True, slots=True)
class Query:
    """(Q, D) vectors to compare with the live vectors of the items that pass the filter.

    `live` is the preference list to search by, mostly the state's own. Only items whose live
    vector is in one of the spaces `among` take part: all of `live` for a direct upgrade, one part
    at a time for a bridged one. They must share the dimension and metric of the query.
    """

    vectors: FloatArray
    k: int
    live: tuple[str, ...]
    among: tuple[str, ...]
    filter: Filter | None = None
    exact: bool = False
    threshold: float | None = None  # hits with a lower score are left out
    seen: State | None = None  # what store.state() said: StateChanged if that is over


@dataclass(frozen=True, slots=True)
class Task:
    """An item that a worker has claimed; `attempts` failed before."""

    item: Item
    attempts: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker's report: this revision of the item could not be embedded."""

    id: str
    revision: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An item that was given up for the target."""

    id: str
    uri: str | None
    reason: str
    attempts: int
    when: float
