"""Look at all that a gallery holds: what is wrong, and what is worth knowing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from midspan import progress
from midspan.errors import VectorError
from midspan.gallery.info import space_names
from midspan.gallery.records import State
from midspan.gallery.stores.base import Store
from midspan.spaces import Embeddings

PAGE = 1000
UNIT = 1e-3  # how far from 1 the length of a normalised vector may be


@dataclass(frozen=True, slots=True)
class SpaceCheck:
    name: str
    fingerprint: str
    vectors: int
    unusable: int  # NaN, infinite, or of length zero in a cosine space
    unnormalised: int  # cosine spaces: not of length 1, which search makes up for
    duplicates: int  # vectors that equal an earlier one bit for bit


@dataclass(frozen=True, slots=True)
class Verification:
    items: int
    spaces: tuple[SpaceCheck, ...]
    without: int  # items with no live vector
    first_without: tuple[str, ...]
    first_unusable: tuple[str, ...]
    problems: tuple[str, ...]  # one line each; empty if all is well
    notes: tuple[str, ...] = ()  # worth knowing, nothing wrong

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


class _Tally:
    """What is found in one space, page by page."""

    def __init__(self) -> None:
        self.vectors = self.unnormalised = 0
        self.unusable: list[str] = []
        self.digests: list[bytes] = []  # of a page each: eight bytes a vector

    def look_at(self, part: Embeddings) -> None:
        self.vectors += len(part)
        digests = (hashlib.blake2b(row.tobytes(), digest_size=8) for row in part.vectors)
        self.digests.append(b"".join(one.digest() for one in digests))
        if part.space.metric == "cosine" and len(part):
            lengths = np.linalg.norm(part.vectors.astype(np.float64), axis=1)
            self.unnormalised += int((np.abs(lengths - 1) > UNIT).sum())

    def duplicates(self) -> int:
        numbers = np.frombuffer(b"".join(self.digests), dtype=np.uint64)
        return len(numbers) - len(np.unique(numbers))


def verify(store: Store, *, show: bool = False) -> Verification:
    state, counts = store.state(), store.count()
    tallies = {space: _Tally() for space in state.spaces}
    items, without = 0, list[str]()
    with progress.bar("verify", total=counts.items, unit="items", show=show) as done:
        after = ""
        while page := store.scan(filter=None, missing=None, after=after, limit=PAGE):
            after = page[-1].id
            items += len(page)
            without += [item.id for item in page if not set(item.spaces) & set(state.live)]
            for space, tally in tallies.items():
                _read(store, [item.id for item in page if space in item.spaces], space, tally)
            done(len(page))
    names = space_names(state)
    spaces = tuple(
        SpaceCheck(
            name=names[space],
            fingerprint=space,
            vectors=tally.vectors + len(tally.unusable),
            unusable=len(tally.unusable),
            unnormalised=tally.unnormalised,
            duplicates=tally.duplicates(),
        )
        for space, tally in tallies.items()
    )
    unusable = [id for tally in tallies.values() for id in tally.unusable]
    return Verification(
        items=items,
        spaces=spaces,
        without=len(without),
        first_without=tuple(without[:10]),
        first_unusable=tuple(unusable[:10]),
        problems=(*store.check(), *_problems(without, unusable)),
        notes=_notes(state, spaces, names),
    )


def _read(store: Store, ids: Sequence[str], space: str, tally: _Tally) -> None:
    """Embeddings refuse bad numbers as a whole: halve until the bad ones stand alone."""
    if not ids:
        return
    try:
        tally.look_at(store.vectors(ids, space=space))
    except VectorError:
        if len(ids) == 1:
            tally.unusable.append(ids[0])
            return
        _read(store, ids[: len(ids) // 2], space, tally)
        _read(store, ids[len(ids) // 2 :], space, tally)


def _problems(without: Sequence[str], unusable: Sequence[str]) -> list[str]:
    problems = []
    if without:
        problems.append(
            f"{len(without)} items have no live vector, first {without[0]!r}: they cannot be "
            "found until they are embedded again"
        )
    if unusable:
        problems.append(
            f"{len(unusable)} vectors hold NaN, infinite values or nothing but zeros, first of "
            f"{unusable[0]!r}: replace these items"
        )
    return problems


def _notes(state: State, spaces: Sequence[SpaceCheck], names: dict[str, str]) -> tuple[str, ...]:
    """A rollback keeps what the backfill made: the next start to that space goes on from it."""
    return tuple(
        f"{check.vectors} vectors of {names[check.fingerprint]!r} are kept from an upgrade that "
        "was rolled back; a start to that space goes on from them, the next finish removes them"
        for check in spaces
        if check.vectors and check.fingerprint not in state.writable()
    )
