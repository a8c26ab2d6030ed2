"""What a gallery holds, in numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from midspan import progress
from midspan.errors import VectorError
from midspan.gallery.records import Counts, State
from midspan.gallery.rules import Quantise, quantise_of
from midspan.html_table import html_table
from midspan.spaces import Embeddings

if TYPE_CHECKING:
    from midspan.gallery.gallery import Gallery


@dataclass(frozen=True, slots=True)
class Info:
    """What a gallery holds, in numbers."""

    location: str
    engine: str
    items: int
    by_space: Mapping[str, int]  # items by the name of the space that their live vector is in
    without: int  # items with no live vector
    done: int  # items with a vector in the target, or all if there is no target
    pending: int
    failed: int
    stored: Mapping[str, int]  # vectors by the name of their space, live or not
    spaces: tuple[Mapping[str, Any], ...]  # each with its index: rows, kind, state, unindexed, …
    upgrade: Mapping[str, Any] | None
    quantise: Quantise | None  # how small an own index holds vectors; None: the engine's settings

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        spaces = ", ".join(f"{name} {count:,}" for name, count in self.by_space.items())
        phase = "" if self.upgrade is None else f"; upgrade {self.upgrade.get('phase')}"
        return (
            f"Info({self.location}: {self.items:,} items; {spaces}; failed {self.failed:,}{phase})"
        )

    def _repr_html_(self) -> str:
        rows = [[name, f"{count:,}"] for name, count in self.by_space.items()]
        rows += [["without a vector", f"{self.without:,}"], ["failed", f"{self.failed:,}"]]
        title = f"{self.location}: {self.items:,} items"
        return html_table(title, rows, head=["space", "items"])


def describe(gallery: Gallery) -> Info:
    state, counts, indexes = gallery.state, gallery.count(), gallery.index_status()
    names = space_names(state)
    return Info(
        location=gallery.location,
        engine=gallery.engine,
        items=counts.items,
        by_space={names.get(space, space): count for space, count in counts.live.items()},
        without=counts.without,
        done=counts.done,
        pending=counts.pending,
        failed=counts.failed,
        stored={names.get(space, space): count for space, count in counts.stored.items()},
        spaces=tuple(
            {
                "name": names[fingerprint],
                "fingerprint": fingerprint,
                "dim": space.dim,
                "metric": space.metric,
                "live": fingerprint in state.live,
                "target": fingerprint == state.target,
                "index": asdict(indexes[fingerprint]) if fingerprint in indexes else None,
            }
            for fingerprint, space in state.spaces.items()
        ),
        upgrade=state.upgrade,
        quantise=quantise_of(gallery),
    )


def space_names(state: State) -> dict[str, str]:
    """A name for people by fingerprint; two spaces of one name get a part of the fingerprint."""
    names = [space.name for space in state.spaces.values()]
    return {
        fingerprint: space.name
        if names.count(space.name) == 1
        else f"{space.name} ({fingerprint[:17]})"
        for fingerprint, space in state.spaces.items()
    }


# ---- verification --------------------------------------------------------------------------------

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
    """What `Gallery.verify` found; `ok` if there is no problem."""

    items: int
    spaces: tuple[SpaceCheck, ...]
    without: int  # items with no live vector
    first_without: tuple[str, ...]
    first_unusable: tuple[str, ...]
    problems: tuple[str, ...]  # one line each; empty if all is well
    garbage: int = 0  # rows in the engine that are no items: `optimise` removes them
    missing: int = 0  # vectors that the catalogue knows and the engine has lost
    notes: tuple[str, ...] = ()  # worth knowing, nothing wrong

    @property
    def ok(self) -> bool:
        return not self.problems

    def __repr__(self) -> str:
        verdict = (
            "all is well" if self.ok else f"{len(self.problems)} problems: {self.problems[0]:.80}"
        )
        return f"Verification({self.items:,} items in {len(self.spaces)} spaces; {verdict})"

    def _repr_html_(self) -> str:
        rows = [
            [one.name, *(f"{n:,}" for n in (one.vectors, one.unusable, one.duplicates))]
            for one in self.spaces
        ]
        note = "; ".join(self.problems) or "all is well"
        head = ["space", "vectors", "unusable", "duplicates"]
        return html_table(f"{self.items:,} items", rows, head=head, note=note)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
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


def verify(gallery: Gallery, *, show: bool = False) -> Verification:
    state, counts = gallery.state, gallery.count()
    tallies = {space: _Tally() for space in state.spaces}
    items, without = 0, list[str]()
    with progress.bar("verify", total=counts.items, unit="items", show=show) as done:
        after = ""
        while page := gallery.scan(after=after, limit=PAGE):
            after = page[-1].id
            items += len(page)
            without += [item.id for item in page if not set(item.spaces) & set(state.live)]
            for space, tally in tallies.items():
                _read(gallery, [item.id for item in page if space in item.spaces], space, tally)
            done(len(page))
    names = space_names(state)
    garbage = gallery.garbage()
    lost = _lost(counts, tallies)
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
        problems=(*gallery.check_storage(), *_problems(without, unusable, lost)),
        garbage=garbage,
        missing=lost,
        notes=(*_garbage_note(garbage), *_notes(state, spaces, names)),
    )


def _read(gallery: Gallery, ids: Sequence[str], space: str, tally: _Tally) -> None:
    """Embeddings refuse bad numbers as a whole: halve until the bad ones stand alone."""
    if not ids:
        return
    try:
        tally.look_at(gallery.vectors(ids, space=space))
    except VectorError:
        if len(ids) == 1:
            tally.unusable.append(ids[0])
            return
        _read(gallery, ids[: len(ids) // 2], space, tally)
        _read(gallery, ids[len(ids) // 2 :], space, tally)


def _lost(counts: Counts, tallies: Mapping[str, _Tally]) -> int:
    """Vectors that are noted as stored and were not found; writes in between aside."""
    return sum(
        max(0, counts.stored.get(space, 0) - tally.vectors - len(tally.unusable))
        for space, tally in tallies.items()
    )


def _garbage_note(garbage: int) -> list[str]:
    if not garbage:
        return []
    return [
        f"{garbage} rows in the engine belong to no item (writes that were interrupted); they "
        "are in no answer, and midspan gallery optimise removes them"
    ]


def _problems(without: Sequence[str], unusable: Sequence[str], lost: int) -> list[str]:
    problems = []
    if lost:
        problems.append(
            f"{lost} vectors are in the catalogue but not in the engine: replace these items, or "
            "restore the engine's data"
        )
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
    """A rollback keeps what the backfill made: the next start to that space continues from it."""
    return tuple(
        f"{check.vectors} vectors of {names[check.fingerprint]!r} are kept from an upgrade that "
        "was rolled back; a start to that space continues from them, the next finish removes them"
        for check in spaces
        if check.vectors and check.fingerprint not in state.writable()
    )
