"""What every store checks before it writes or searches, inside its own transaction."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from midspan.errors import GalleryError, ItemError, SpaceMismatch, StateChanged, VectorError
from midspan.gallery.items import Draft, check_id, payload_json
from midspan.gallery.records import Entry, Failed, Mode, Query, State
from midspan.spaces import Embeddings, FloatArray, Space

LARGEST_K = 10_000
LONGEST = 1e18  # longer vectors overflow a float32 product
REASON_CHARACTERS = 500
PAGE = 100_000  # items that one call may ask for


def first_state(space: Space) -> State:
    return State(version=1, spaces={space.fingerprint: space}, live=(space.fingerprint,))


def known_space(state: State, fingerprint: str) -> Space:
    if fingerprint not in state.spaces:
        raise SpaceMismatch(
            f"this gallery does not know the space {fingerprint!r:.80}; it holds {holds(state)}"
        )
    return state.spaces[fingerprint]


def holds(state: State) -> str:
    return " and ".join(str(state.spaces[fingerprint]) for fingerprint in state.live)


def check_vectors(state: State, vectors: Embeddings) -> None:
    """The gallery knows the space of these vectors and takes them."""
    space = vectors.space
    known = state.spaces.get(space.fingerprint)
    if known is None or not known.same_as(space):
        raise SpaceMismatch(
            f"these vectors are in {space}, which this gallery does not know; it holds "
            f"{holds(state)}: embed with that encoder, or start an upgrade to the other"
        )
    if space.fingerprint not in state.writable():
        raise SpaceMismatch(
            f"these vectors are in {space}, which this gallery has left; it now holds "
            f"{holds(state)}: embed with that encoder"
        )
    if len(vectors):
        peaks = np.abs(vectors.vectors).max(axis=1)
        if (too_long := peaks * np.sqrt(space.dim) > LONGEST).any():
            row = int(np.flatnonzero(too_long)[0])
            raise VectorError(
                f"vector of {str(vectors.ids[row])!r} (row {row}) is longer than {LONGEST:g}: "
                "scale it"
            )


def check_fill(state: State, vectors: Embeddings, revisions: Sequence[int]) -> None:
    check_vectors(state, vectors)
    if len(revisions) != len(vectors):
        raise ItemError(f"{len(revisions)} revisions for {len(vectors)} vectors; give one each")


def check_write(state: State, drafts: Sequence[Draft], vectors: Sequence[Embeddings]) -> None:
    """Each draft once, with a vector; no vector without its draft."""
    ids = {draft.id for draft in drafts}
    if len(ids) < len(drafts):
        raise ItemError(f"{len(drafts)} items with {len(ids)} different ids; give each item once")
    covered: set[str] = set()
    spaces: set[str] = set()
    for part in vectors:
        check_vectors(state, part)
        if part.space.fingerprint in spaces:
            raise ItemError(f"two sets of vectors in {part.space}; join them")
        spaces.add(part.space.fingerprint)
        given = set(part.ids.tolist())
        if not given <= ids:
            raise ItemError(f"a vector for {min(given - ids)!r}, which is none of the items")
        covered |= given
    if covered < ids:
        raise ItemError(
            f"{len(ids - covered)} of {len(ids)} items come without a vector, first "
            f"{min(ids - covered)!r}; every item needs one"
        )


def check_presence(present: Collection[str], drafts: Sequence[Draft], *, mode: Mode) -> None:
    """`present` are those of the ids that the gallery has."""
    if mode == "add" and present:
        raise ItemError(
            f"{len(present)} of {len(drafts)} ids are in the gallery already, first "
            f"{min(present)!r}; replace them, or leave them out"
        )
    if mode == "replace" and len(present) < len(drafts):
        missing = {draft.id for draft in drafts} - set(present)
        raise ItemError(
            f"{len(missing)} of {len(drafts)} ids are not in the gallery, first "
            f"{min(missing)!r}; add them, or leave them out"
        )


def check_change(before: State, after: State) -> State:
    """The state to be written, with its new version."""
    if after.version != before.version:
        raise StateChanged(
            f"the gallery's state is at version {before.version}, this change was made from "
            f"version {after.version}: read the state again and repeat the step"
        )
    if not after.live or len(set(after.live)) < len(after.live):
        raise GalleryError(f"live spaces {after.live} must be at least one, each once")
    for fingerprint in (*after.live, *([after.target] if after.target is not None else [])):
        known_space(after, fingerprint)
    for fingerprint, space in after.spaces.items():
        if fingerprint != space.fingerprint:
            raise GalleryError(f"{space} stands under the fingerprint {fingerprint!r:.80}")
        if fingerprint in before.spaces and not before.spaces[fingerprint].same_as(space):
            raise SpaceMismatch(f"{space} is known as {before.spaces[fingerprint]}")
    upgrade = None if after.upgrade is None else json.loads(payload_json(after.upgrade, of="state"))
    return dataclasses.replace(
        after, version=before.version + 1, spaces=dict(after.spaces), upgrade=upgrade
    )


def check_droppable(state: State, fingerprint: str) -> None:
    known_space(state, fingerprint)
    if fingerprint in state.writable():
        raise GalleryError(
            f"{state.spaces[fingerprint]} is in use; its vectors can be dropped when it is neither "
            "live nor the target"
        )


def check_query(state: State, query: Query) -> Space:
    """The space (for its dim and metric) that the query is compared in."""
    if isinstance(query.k, bool) or not isinstance(query.k, int) or not 1 <= query.k <= LARGEST_K:
        raise GalleryError(f"k = {query.k!r}; wanted a whole number from 1 to {LARGEST_K:,}")
    if query.seen is not None and query.seen.version != state.version:
        # After a rollback, say, an old view would miss what the rollback took away.
        raise StateChanged(
            f"the query was made for state {query.seen.version} of the gallery, which is at "
            f"{state.version} now; read it again"
        )
    for fingerprint in query.live:
        known_space(state, fingerprint)
    if not query.among or (query.among is not query.live and not {*query.among} <= {*query.live}):
        raise GalleryError(f"search among {query.among}: wanted some of {query.live}")
    spaces = [state.spaces[fingerprint] for fingerprint in query.among]
    if len(spaces) > 1 and len({(space.dim, space.metric) for space in spaces}) > 1:
        raise SpaceMismatch(
            f"{' and '.join(map(str, spaces))} cannot be searched with one vector: search them "
            "one by one through a bridge"
        )
    vectors = query.vectors
    if vectors.ndim != 2 or vectors.shape[1] != spaces[0].dim:
        raise VectorError(
            f"query vectors have shape {vectors.shape}; {spaces[0]} wants (Q, {spaces[0].dim})"
        )
    if not _plainly_fine(vectors):
        _check_numbers(vectors, spaces[0])
    return spaces[0]


def _plainly_fine(vectors: FloatArray) -> bool:
    """Most queries are: their lengths say so, for a third of the time that the peaks take."""
    if len(vectors) == 1:
        squares = [float(vectors[0].dot(vectors[0]))]
    else:
        squares = np.einsum("qd,qd->q", vectors, vectors).tolist()
    most = 0.99 * LONGEST**2 / vectors.shape[1]  # of the peak alone
    return all(1e-30 < square < most for square in squares)  # NaN is not


def _check_numbers(vectors: FloatArray, space: Space) -> None:
    for row, peak in enumerate(np.abs(vectors).max(axis=1).tolist()):
        if not peak * math.sqrt(space.dim) <= LONGEST:  # NaN is not <= either
            raise VectorError(
                f"query vector {row} holds NaN or infinite values, or is too long to compare"
            )
        if peak == 0 and space.metric == "cosine":
            raise VectorError(f"query vector {row} has length zero, which has no direction")


def possible(ids: Iterable[str]) -> list[str]:
    """Those that an item could have. The others are nowhere, and some engines choke on them."""
    return [id for id in ids if _could_be_an_id(id)]


def _could_be_an_id(id: str) -> bool:
    try:
        return bool(check_id(id))
    except ItemError:
        return False


def check_cursor(after: str) -> str:
    return check_id(after) if after else ""


def check_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE:
        raise GalleryError(f"limit = {limit!r}; wanted a whole number from 1 to {PAGE:,}")
    return limit


def check_entry(entry: Entry, *, when: float) -> Entry:
    """With its time; the trail keeps text and JSON only."""
    check_id(entry.who)
    check_id(entry.what)
    details = json.loads(payload_json(entry.details, of=entry.what))
    return dataclasses.replace(entry, details=details, when=when)


def check_priorities(ids: Sequence[str], priorities: Sequence[float]) -> list[tuple[str, float]]:
    if len(ids) != len(priorities):
        raise GalleryError(f"{len(priorities)} priorities for {len(ids)} ids; give one each")
    pairs = [(id, float(priority)) for id, priority in zip(ids, priorities, strict=True)]
    for id, priority in pairs:
        if not math.isfinite(priority):
            raise GalleryError(f"priority {priority} of {id!r}; wanted a finite number")
    return pairs


def reason(report: Failed) -> str:
    """What engines can keep of a reason: one line, without control characters."""
    text = " ".join(report.reason.split()) or "no reason given"
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return printable[:REASON_CHARACTERS]
