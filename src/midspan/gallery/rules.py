"""What a gallery checks before it writes or searches."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from midspan.errors import GalleryError, ItemError, SpaceMismatch, StateChanged, VectorError
from midspan.gallery.records import (
    ID_BYTES,
    PROMISING,
    AuditEvent,
    Draft,
    Failed,
    Record,
    State,
    WriteMode,
    check_id,
    check_text,
    payload_json,
)
from midspan.spaces import Embeddings, FloatArray, Space

if TYPE_CHECKING:
    from midspan.gallery.gallery import Gallery

LARGEST_K = 10_000
LONGEST = 1e18  # longer vectors overflow a float32 product
REASON_CHARACTERS = 500
PAGE = 100_000  # items that one call may ask for


def known_space(state: State, fingerprint: str) -> Space:
    if fingerprint not in state.spaces:
        raise SpaceMismatch(
            f"this gallery does not know the space {fingerprint!r:.80}; it holds {holds(state)}"
        )
    return state.spaces[fingerprint]


def holds(state: State) -> str:
    return " and ".join(str(state.spaces[fingerprint]) for fingerprint in state.live)


def check_encoder(state: State, space: Space, *, shown: str) -> None:
    if not any(state.spaces[known].same_as(space) for known in state.writable()):
        raise SpaceMismatch(
            f"{shown} holds vectors of {holds(state)}, this encoder makes {space}. "
            "Two ways out: use the gallery's own encoder, or change the gallery over to this one "
            f"with midspan upgrade start {shown}"
        )


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


def check_missing_vectors(state: State, vectors: Embeddings, revisions: Sequence[int]) -> None:
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
    check_rollback(state, drafts, vectors)


def check_rollback(state: State, drafts: Sequence[Draft], vectors: Sequence[Embeddings]) -> None:
    """While a rollback is promised, no item comes that it would make vanish."""
    record = None if state.upgrade is None else Record.of(state)
    if record is None or not record.rollback or record.phase not in PROMISING:
        return
    kept = {
        id for part in vectors if part.space.fingerprint == record.old for id in part.ids.tolist()
    }
    if missing := {draft.id for draft in drafts} - kept:
        old, new = state.spaces[record.old], state.spaces[record.new]
        raise ItemError(
            f"{len(missing)} of {len(drafts)} items come without a vector in {old}, first "
            f"{min(missing)!r}; this upgrade promises a rollback, which they would not survive. "
            f"Bring their vectors in {old} (the backfill adds those in {new}) or in both; an "
            "upgrade that is started without the promise takes them as they are"
        )


def check_presence(present: Collection[str], drafts: Sequence[Draft], *, mode: WriteMode) -> None:
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


def check_k(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= LARGEST_K:
        raise GalleryError(f"k = {k!r}; expected a whole number from 1 to {LARGEST_K:,}")
    return k


def check_query(state: State, vectors: FloatArray, among: tuple[str, ...]) -> Space:
    """The space (for its dim and metric) that (Q, D) vectors are compared in."""
    first = state.spaces[among[0]]
    for fingerprint in among[1:]:
        space = state.spaces[fingerprint]
        if (space.dim, space.metric) != (first.dim, first.metric):
            raise SpaceMismatch(
                f"{first} and {space} cannot be searched with one vector: search them one by one "
                "through a bridge"
            )
    if vectors.ndim != 2 or vectors.shape[1] != first.dim:
        raise VectorError(
            f"query vectors have shape {vectors.shape}; {first} requires (Q, {first.dim})"
        )
    if not _plainly_fine(vectors):
        _check_numbers(vectors, first)
    return first


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


def valid_ids(ids: Iterable[str]) -> list[str]:
    """Those that an item could have. The others are nowhere, and some engines choke on them."""
    many = list(ids)
    with contextlib.suppress(ItemError, TypeError):  # all of them at once: a hundredth of the time
        if all(0 < len(id) <= ID_BYTES // 4 for id in many):
            check_text("".join(many), what="ids", limit=ID_BYTES * max(1, len(many)))
            return many
    return [id for id in many if _could_be_an_id(id)]


def _could_be_an_id(id: str) -> bool:
    try:
        return bool(check_id(id))
    except ItemError:
        return False


def check_cursor(after: str) -> str:
    return check_id(after) if after else ""


def check_limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PAGE:
        raise GalleryError(f"limit = {limit!r}; expected a whole number from 1 to {PAGE:,}")
    return limit


def check_event(event: AuditEvent, *, when: float) -> AuditEvent:
    """With its time; the audit log keeps text and JSON only."""
    check_id(event.who)
    check_id(event.what)
    details = json.loads(payload_json(event.details, of=event.what))
    return dataclasses.replace(event, details=details, when=when)


def check_priorities(ids: Sequence[str], priorities: Sequence[float]) -> list[tuple[str, float]]:
    if len(ids) != len(priorities):
        raise GalleryError(f"{len(priorities)} priorities for {len(ids)} ids; give one each")
    pairs = [(id, float(priority)) for id, priority in zip(ids, priorities, strict=True)]
    for id, priority in pairs:
        if not math.isfinite(priority):
            raise GalleryError(f"priority {priority} of {id!r}; expected a finite number")
    return pairs


def reason(report: Failed) -> str:
    """What engines can keep of a reason: one line, without control characters."""
    text = " ".join(report.reason.split()) or "no reason given"
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return printable[:REASON_CHARACTERS]


# ---- how small the codes of an embedded gallery's index are --------------------------------------
# The record keeps every vector as it came, and so does the index's mapped file. Codes only find the
# candidates, whose scores come from the true vectors; smaller ones need less memory to stay there.


Quantise = Literal["none", "int8", "binary"]

QUANTISE: dict[Quantise, str] = {
    "none": "8-bit codes and float32, both mapped and kept in memory",
    "int8": "8-bit codes kept in memory, float32 read from its file",
    "binary": "1 bit per dimension kept in memory, float32 read from its file",
}


def check_quantise(value: str) -> Quantise:
    if value not in QUANTISE:
        raise GalleryError(f"quantise = {value!r:.80}; expected one of {', '.join(QUANTISE)}")
    return value


def refuse_quantise(scheme: str, value: str) -> None:
    """For an engine that holds vectors in its own way: nothing is ignored silently."""
    if scheme == "embedded":
        return
    if scheme == "memory":
        raise GalleryError(
            f"a gallery in memory is exact and holds float32; quantise={value!r} is for a file: "
            "shop.midspan"
        )
    raise GalleryError(
        f"quantise={value!r} is for a file (shop.midspan); {scheme} has settings of its own that "
        "say how it holds vectors"
    )


def quantise_of(gallery: Gallery) -> Quantise | None:
    """None: the engine has settings of its own."""
    if gallery.engine != "embedded":
        return None
    return check_quantise(gallery.settings().get("quantise", "none"))


def set_quantise(gallery: Gallery, value: str) -> None:
    """Choose how small the gallery's own index holds vectors, from now on, in every process.

    An index that must be made again is made in the background.

    Args:
        gallery: An open gallery of an engine that keeps an index of its own.
        value: "none", "int8" or "binary"; see QUANTISE.

    Raises:
        GalleryError: There is no such value, or the engine holds vectors in its own way.

    Example:
        >>> import pathlib, tempfile
        >>> import midspan as ms
        >>> from midspan.gallery import set_quantise
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "shop.midspan")
        ...     with ms.Gallery.create(path, ms.Space("tiny", 64)) as gallery:
        ...         set_quantise(gallery, "int8")
        ...         print(gallery.info().quantise)
        int8
    """
    checked = check_quantise(value)
    refuse_quantise(gallery.engine, value)
    details = {"from": quantise_of(gallery), "to": value}
    event = AuditEvent(who=gallery.who, what="quantise", details=details)
    gallery.set_setting("quantise", checked, event=event)
